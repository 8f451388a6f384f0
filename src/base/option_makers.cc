#include "base/option_makers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/units.h"

namespace litecache {
namespace {

std::string Underscored(std::string text) {
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

}  // namespace

bool OptionInfo::AppliesTo(std::string_view policy) const {
  return policies.empty() || std::find(policies.begin(), policies.end(), policy) != policies.end();
}

std::string OptionInfo::LongFlag() const { return flag.substr(flag.find("--")); }

std::string OptionInfo::NameIn(OptionNames names) const {
  return names == OptionNames::kFlags && !programs_only ? LongFlag() : "option " + name;
}

namespace internal {

bool IsNamed(const OptionInfo& option, std::string_view name) {
  const std::string wanted = Underscored(std::string(name));
  return wanted == option.name || wanted == Underscored(option.LongFlag().substr(2));
}

void ThrowUnknownOption(std::string_view name, const std::vector<std::string>& names) {
  throw InvalidArgument("'{}' is not an option; there are: {}", name, fmt::join(names, ", "));
}

}  // namespace internal

namespace option_rows {
namespace {

// A range whose end is at least this stands for numbers without a natural end.
constexpr double kOpenEnd = 1 << 20;

// The number in `text`; nothing may follow it except `unit`.
template <class T>
T ReadNumber(const std::string& text, std::string_view who, std::string_view wanted,
             std::string_view unit = "") {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || std::string_view(stop, end) != unit) {
    throw InvalidArgument("{}: '{}' is not {}", who, text, wanted);
  }
  return value;
}

// A kind of number with a range, which NaN is never in.
template <class T, class Read>
Kind<T> Number(std::string type, double low, double high, Read read) {
  return {std::move(type),
          high >= kOpenEnd ? fmt::format("{} or more", low) : fmt::format("{} to {}", low, high),
          [low, high, read](const std::string& text, std::string_view who) {
            const T value = read(text, who);
            if (!(static_cast<double>(value) >= low && static_cast<double>(value) <= high)) {
              throw InvalidArgument("{}: '{}' is not a number from {} to {}", who, text, low, high);
            }
            return value;
          },
          [](T value) { return fmt::format("{}", value); }};
}

int64_t ReadWhole(const std::string& text, std::string_view who) {
  return ReadNumber<int64_t>(text, who, "a whole number that fits");
}

bool ReadSwitch(const std::string& text, std::string_view who) {
  if (text == "on" || text == "true" || text == "1") return true;
  if (text == "off" || text == "false" || text == "0") return false;
  throw InvalidArgument("{}: '{}' is neither on nor off", who, text);
}

std::string WriteBytes(uint64_t value) {
  constexpr std::array kUnits = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; value > 0 && value % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{}{}", value, kUnits[unit]);
}

}  // namespace

Kind<int64_t> Whole(double low, double high) { return Number<int64_t>("N", low, high, ReadWhole); }

Kind<int64_t> Tokens(double low, double high) {
  return Number<int64_t>("TOKENS", low, high, [](const std::string& text, std::string_view who) {
    return text.starts_with('-') ? ReadWhole(text, who) : ParseTokens(text, who);
  });
}

Kind<double> Real(double low, double high) {
  return Number<double>("X", low, high, [](const std::string& text, std::string_view who) {
    return ReadNumber<double>(text, who, "a number");
  });
}

Kind<double> Share() {
  static constexpr std::string_view kWanted = "a share: 0% to 100%, or 0 to 1";
  return {"SHARE", "0% to 100%, or 0 to 1",
          [](const std::string& text, std::string_view who) {
            const bool percent = text.ends_with('%');
            const double share =
                ReadNumber<double>(text, who, kWanted, percent ? "%" : "") / (percent ? 100 : 1);
            if (share >= 0 && share <= 1) return share;
            throw InvalidArgument("{}: '{}' is not {}", who, text, kWanted);
          },
          [](double value) { return fmt::format("{}", value); }};
}

Kind<uint64_t> Bytes() {
  return {"SIZE", "",
          [](const std::string& text, std::string_view who) { return ParseBytes(text, who); },
          WriteBytes};
}

Kind<bool> Switch() {
  return {"on|off", "on, off", ReadSwitch,
          [](bool value) -> std::string { return value ? "on" : "off"; }};
}

Kind<bool> Flag() {
  Kind<bool> kind = Switch();
  kind.type = "";
  return kind;
}

Kind<std::string> Text(std::string type) {
  return {std::move(type), "", [](const std::string& text, std::string_view) { return text; },
          [](const std::string& value) { return value; }};
}

Kind<std::string> Choice(std::vector<std::string> choices, std::string type) {
  Kind<std::string> kind = Text(std::move(type));
  kind.values = fmt::format("{}", fmt::join(choices, ", "));
  kind.read = [choices = std::move(choices)](const std::string& text, std::string_view who) {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
    throw InvalidArgument("{}: '{}' is not one of {}", who, text, fmt::join(choices, ", "));
  };
  return kind;
}

std::string FlagOf(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin() + 2, flag.end(), '_', '-');
  return flag;
}

}  // namespace option_rows
}  // namespace litecache
