#include "cli/option_errors.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/option_makers.h"
#include "litecache/engine.h"

namespace litecache::cli {
namespace {

// The expected form of a value, by the option's type_name.
std::string Wanted(std::string_view type) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kTypes = {{
      {"N", "a whole number that fits"},
      {"X", "a number"},
      {"P", "a number"},
      {"SECONDS", "a number of seconds"},
      {"PORT", "a port, 0 to 65535"},
      {"SIZE", "a size; write e.g. 48GiB or 512MiB"},
      {"TOKENS", "a number of tokens; write e.g. 16k or 12000"},
  }};
  for (const auto& [name, text] : kTypes) {
    if (type == name) return std::string(text);
  }
  return fmt::format("a value for {}", type);
}

// `text` before `separator`, and the part after it.
std::optional<std::pair<std::string, std::string>> Cut(const std::string& text,
                                                       std::string_view separator) {
  const size_t at = text.find(separator);
  if (at == std::string::npos) return std::nullopt;
  return std::pair{text.substr(0, at), text.substr(at + separator.size())};
}

// Removes trailing zeros: "0.500000" to "0.5".
std::string Shortest(const std::string& number) {
  double value = 0;
  const char* end = number.data() + number.size();
  if (std::from_chars(number.data(), end, value).ptr != end) return number;
  return fmt::format("{}", value);
}

// Rewrites "Could not convert: --port = 99999".
std::optional<std::string> Conversion(const CLI::App& app, const std::string& text) {
  constexpr std::string_view kStart = "Could not convert: ";
  if (!text.starts_with(kStart)) return std::nullopt;
  const auto parts = Cut(text.substr(kStart.size()), " = ");
  if (!parts) return std::nullopt;
  const CLI::Option* option = app.get_option_no_throw(parts->first);
  if (option == nullptr) return std::nullopt;
  return fmt::format("{}: '{}' is not {}", parts->first, parts->second,
                     Wanted(option->get_type_name()));
}

// Rewrites "--steps: Value 0 not in range 1 to 4096", "--kv-policy: ful not in {full,litecache}".
std::optional<std::string> Validation(const std::string& text) {
  const auto named = Cut(text, ": ");
  if (!named) return std::nullopt;
  const auto& [name, objection] = *named;
  if (const auto set = Cut(objection, " not in {"); set && set->second.ends_with('}')) {
    std::string list;
    for (const char c : set->second.substr(0, set->second.size() - 1)) {
      list += c;
      if (c == ',') list += ' ';
    }
    return fmt::format("{}: '{}' is not one of {}", name, set->first, list);
  }
  constexpr std::string_view kValue = "Value ";
  const auto range = Cut(objection, " not in range ");
  if (!range || !range->first.starts_with(kValue)) return std::nullopt;
  const auto bounds = Cut(range->second, " to ");
  if (!bounds) return std::nullopt;
  return fmt::format("{}: '{}' is not a number from {} to {}", name,
                     range->first.substr(kValue.size()), Shortest(bounds->first),
                     Shortest(bounds->second));
}

}  // namespace

std::string DescribeOptionError(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  if (auto described = Conversion(app, text)) return *described;
  if (auto described = Validation(text)) return *described;
  return text;
}

std::string WithFlag(const CLI::App& app, const std::string& message) {
  constexpr std::string_view kWord = "abcdefghijklmnopqrstuvwxyz_";
  const size_t end = message.find_first_not_of(kWord);
  if (end == 0 || end == std::string::npos) return message;
  const std::string_view rest = std::string_view(message).substr(end);
  if (!rest.starts_with(" = ") && !rest.starts_with(": ") && !rest.starts_with(" '")) {
    return message;
  }
  std::string flag = option_rows::FlagOf(message.substr(0, end));
  for (const OptionInfo& row : EngineOptionTable()) {
    if (row.name == message.substr(0, end)) flag = row.LongFlag();
  }
  return app.get_option_no_throw(flag) == nullptr ? message : flag + std::string(rest);
}

}  // namespace litecache::cli
