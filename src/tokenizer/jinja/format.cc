#include "tokenizer/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

// More digits than any double has: a larger precision is a mistake or an attack.
constexpr int64_t kMaxPrecision = 2000;

std::string Digits(uint64_t value, char type) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", value);
    case 'X':
      return fmt::format("{:X}", value);
    case 'o':
      return fmt::format("{:o}", value);
    case 'b':
      return fmt::format("{:b}", value);
    default:
      return fmt::format("{}", value);
  }
}

std::string FloatDigits(const FormatSpec& spec, double value) {
  const char type = spec.type == '%' ? 'f' : spec.type;
  if (spec.type == '%') value *= 100;
  const bool upper = type == 'F' || type == 'E' || type == 'G';
  std::string text;
  if (std::isnan(value) || std::isinf(value)) {
    text = std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
  } else {
    const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", type);
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    const int size = std::snprintf(nullptr, 0, format.c_str(), precision, value);
    text.resize(static_cast<size_t>(size) + 1);
    std::snprintf(text.data(), text.size(), format.c_str(), precision, value);
    text.pop_back();
  }
  if (spec.type == '%') text += '%';
  return text;
}

// Puts commas or underscores between groups of three digits before the point.
std::string Group(const std::string& digits, char separator) {
  size_t end = digits.find_first_not_of("0123456789");
  if (end == std::string::npos) end = digits.size();
  std::string result;
  for (size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % 3 == 0) result.push_back(separator);
    result.push_back(digits[i]);
  }
  return result + digits.substr(end);
}

std::string WithSign(const FormatSpec& spec, bool negative, std::string digits) {
  if (negative) return "-" + digits;
  if (spec.sign == '+') return "+" + digits;
  if (spec.sign == ' ') return " " + digits;
  return digits;
}

}  // namespace

std::string FormatNumber(Runtime& rt, const FormatSpec& spec, const Value& value) {
  if (spec.precision > kMaxPrecision) {
    rt.Fail("format precision {} is over the limit of {}", spec.precision, kMaxPrecision);
  }
  if (std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos) {
    const double number = value.number();
    std::string digits = FloatDigits(spec, std::fabs(number));
    if (spec.grouping != 0) digits = Group(digits, spec.grouping);
    return WithSign(spec, std::signbit(number) && !std::isnan(number), std::move(digits));
  }
  const int64_t number = value.int_value();
  const uint64_t magnitude =
      number < 0 ? -static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits = Digits(magnitude, spec.type);
  if (spec.grouping != 0) {
    if (spec.type != 'd') rt.FailUnsupported("grouping of digits that are not decimal");
    digits = Group(digits, spec.grouping);
  }
  if (spec.alternate && spec.type != 'd') digits = std::string{'0', spec.type} + digits;
  return WithSign(spec, number < 0, std::move(digits));
}

void AppendPadded(Runtime& rt, const FormatSpec& spec, char default_align, const MarkedString& text,
                  MarkedString* out) {
  const auto length = static_cast<int64_t>(CountCodePoints(text.text()));
  const int64_t padding = std::max<int64_t>(spec.width - length, 0);
  if (padding > rt.limits().string_bytes) rt.ChargeBytes(static_cast<size_t>(padding));
  rt.ChargeBytes(static_cast<size_t>(padding) * spec.fill.size() + text.size());
  const char align = spec.align != 0 ? spec.align : default_align;
  int64_t before = align == '>' || align == '=' ? padding : align == '^' ? padding / 2 : 0;
  size_t begin = 0;
  if (align == '=' && !text.empty() &&
      std::string_view("+- ").find(text.text()[0]) != std::string_view::npos) {
    out->Append(text, 0, 1);
    begin = 1;
  }
  if (align == '=' && text.size() > begin + 2 && text.text()[begin] == '0' &&
      std::string_view("xXob").find(text.text()[begin + 1]) != std::string_view::npos) {
    out->Append(text, begin, begin + 2);
    begin += 2;
  }
  for (int64_t i = 0; i < before; ++i) out->Append(spec.fill);
  out->Append(text, begin, text.size());
  for (int64_t i = before; i < padding; ++i) out->Append(spec.fill);
}

}  // namespace litecache::tokenizer::jinja
