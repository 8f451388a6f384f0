#include "base/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace litecache {
namespace {

// Splits "1.5GiB" into a number and a lower-cased suffix.
struct NumberAndSuffix {
  double number;
  std::string suffix;
};

// wanted: describes what the text should have been, with an example.
NumberAndSuffix Split(std::string_view text, std::string_view what, std::string_view wanted) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  NumberAndSuffix result{0, ""};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result.number);
  if (error != std::errc() || !std::isfinite(result.number) || result.number < 0) {
    throw InvalidArgument("{}: '{}' is not {}", what, text, wanted);
  }
  for (const char* p = end; p != text.data() + text.size(); ++p) {
    if (!std::isspace(static_cast<unsigned char>(*p))) {
      result.suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
    }
  }
  return result;
}

}  // namespace

uint64_t ParseBytes(std::string_view text, std::string_view what) {
  const auto [number, suffix] = Split(text, what, "a size; write e.g. 48GiB or 512MiB");
  static constexpr std::array<std::pair<std::string_view, double>, 15> kUnits = {{
      {"", 1.0},
      {"b", 1.0},
      {"k", 0x1p10},
      {"m", 0x1p20},
      {"g", 0x1p30},
      {"t", 0x1p40},
      {"kib", 0x1p10},
      {"mib", 0x1p20},
      {"gib", 0x1p30},
      {"tib", 0x1p40},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"bytes", 1.0},
  }};
  for (const auto& [name, factor] : kUnits) {
    if (suffix == name) {
      const double bytes = number * factor;
      if (bytes >= 0x1p63) throw InvalidArgument("{}: '{}' is too large", what, text);
      return static_cast<uint64_t>(bytes);
    }
  }
  throw InvalidArgument("{}: unknown unit in '{}'; write e.g. 48GiB or 512MiB", what, text);
}

int64_t ParseTokens(std::string_view text, std::string_view what) {
  const auto [number, suffix] = Split(text, what, "a number of tokens; write e.g. 16k or 12000");
  const double factor = suffix.empty()  ? 1.0
                        : suffix == "k" ? 0x1p10
                        : suffix == "m" ? 0x1p20
                                        : -1.0;
  if (factor < 0)
    throw InvalidArgument("{}: unknown unit in '{}'; write e.g. 16k or 12000", what, text);
  const double tokens = number * factor;
  if (tokens >= 0x1p53 || tokens != std::floor(tokens)) {
    throw InvalidArgument("{}: '{}' is not a whole number of tokens", what, text);
  }
  return static_cast<int64_t>(tokens);
}

int64_t ParseShareOrTokens(std::string_view text, int64_t whole, std::string_view what) {
  if (!text.empty() && text.back() == '%') {
    const auto [number, suffix] =
        Split(text.substr(0, text.size() - 1), what, "a share; write e.g. 10% or 4096");
    if (!suffix.empty() || number > 100) {
      throw InvalidArgument("{}: '{}' is not a share between 0% and 100%", what, text);
    }
    return static_cast<int64_t>(std::ceil(static_cast<double>(whole) * number / 100.0));
  }
  return ParseTokens(text, what);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kNames[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds >= 3600)
    return fmt::format("{:.0f}h{:02.0f}m", std::floor(seconds / 3600),
                       std::floor(std::fmod(seconds, 3600) / 60));
  if (seconds >= 60)
    return fmt::format("{:.0f}m{:02.0f}s", std::floor(seconds / 60),
                       std::floor(std::fmod(seconds, 60)));
  const auto [value, unit] = seconds >= 1      ? std::pair{seconds, "s"}
                             : seconds >= 1e-3 ? std::pair{seconds * 1e3, "ms"}
                             : seconds >= 1e-6 ? std::pair{seconds * 1e6, "us"}
                                               : std::pair{seconds * 1e9, "ns"};
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

}  // namespace litecache
