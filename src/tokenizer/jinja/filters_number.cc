#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

namespace {

constexpr double kInt64Limit = 9223372036854775808.0;  // 2^63

// Removes the underscores Python allows between digits; nullopt for one elsewhere.
std::optional<std::string> DropUnderscores(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result.push_back(text[i]);
      continue;
    }
    const auto alphanumeric = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return std::nullopt;
  }
  return result;
}

// int(text, base), nullopt where Python raises ValueError.
std::optional<int64_t> ParseInt(Runtime& rt, const MarkedString& string, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string text = Strip(string, Side::kBoth, std::nullopt).text();
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.erase(0, 1);
  }
  if (text.size() > 1 && text[0] == '0') {
    const char prefix = static_cast<char>(text[1] | 0x20);
    const int64_t prefix_base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
      base = prefix_base;
      text.erase(0, 2);
      if (!text.empty() && text[0] == '_') text.erase(0, 1);
    } else if (base == 0 && text.find_first_not_of("0_") != std::string::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  const auto digits = DropUnderscores(text);
  if (!digits || digits->empty() || (*digits)[0] == '-' || (*digits)[0] == '+') return std::nullopt;
  const std::string signed_digits = (negative ? "-" : "") + *digits;
  int64_t value = 0;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto result = std::from_chars(signed_digits.data(), end, value, static_cast<int>(base));
  if (result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    rt.Fail("integer over 64 bits is not supported");
  }
  return value;
}

// float(text), nullopt where Python raises ValueError.
std::optional<double> ParseFloat(const MarkedString& string) {
  const auto text = DropUnderscores(Strip(string, Side::kBoth, std::nullopt).text());
  if (!text || text->empty()) return std::nullopt;
  std::string lower = *text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string unsigned_text = lower[0] == '-' || lower[0] == '+' ? lower.substr(1) : lower;
  if (unsigned_text != "inf" && unsigned_text != "infinity" && unsigned_text != "nan" &&
      unsigned_text.find_first_not_of("0123456789.e+-") != std::string::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> Truncated(double value) {
  if (!(std::fabs(value) < kInt64Limit)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value IntFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "int", args, {"default", "base"});
  RequireDefined(rt, input);
  Value missing = bound.Get(0, Value::Int(0));
  if (input.IsInteger()) return Value::Int(input.int_value());
  if (input.Is(Type::kFloat)) {
    const double value = input.number();
    if (std::isnan(value)) return missing;
    if (std::isinf(value)) rt.Fail("cannot convert float infinity to integer");
    if (const auto result = Truncated(value)) return Value::Int(*result);
    rt.Fail("integer over 64 bits is not supported");
  }
  if (!input.IsString()) return missing;
  if (const auto result = ParseInt(rt, input.string(), bound.Int(1, 10)))
    return Value::Int(*result);
  const auto number = ParseFloat(input.string());
  if (!number || std::isnan(*number) || std::isinf(*number)) return missing;
  if (const auto result = Truncated(*number)) return Value::Int(*result);
  rt.Fail("integer over 64 bits is not supported");
}

Value FloatFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "float", args, {"default"});
  RequireDefined(rt, input);
  if (input.IsNumber()) return Value::Float(input.number());
  if (input.IsString()) {
    if (const auto number = ParseFloat(input.string())) return Value::Float(*number);
  }
  return bound.Get(0, Value::Float(0.0));
}

Value Abs(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "abs", args, {});
  RequireDefined(rt, input);
  if (input.Is(Type::kFloat)) return Value::Float(std::fabs(input.number()));
  if (!input.IsInteger()) rt.Fail("bad operand type for abs(): '{}'", TypeName(input));
  return input.int_value() < 0 ? Negate(rt, input) : Value::Int(input.int_value());
}

int64_t RoundInt(Runtime& rt, int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -digits; ++i) unit *= 10;
  int64_t rest = value % unit;
  if (rest < 0) rest += unit;
  int64_t result = 0;
  if (__builtin_sub_overflow(value, rest, &result))
    rt.Fail("integer over 64 bits is not supported");
  const bool up = rest > unit - rest || (rest == unit - rest && (result / unit) % 2 != 0);
  if (up && __builtin_add_overflow(result, unit, &result)) {
    rt.Fail("integer over 64 bits is not supported");
  }
  return result;
}

// round(value, digits): half to even on the exact decimal value, which printf gives.
double RoundFloat(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 330) return value;
  if (digits < -310) return std::copysign(0.0, value);
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / unit) * unit;
  }
  const std::string text = fmt::format("{:.{}f}", value, digits);
  return std::strtod(text.c_str(), nullptr);
}

Value Round(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "round", args, {"precision", "method"});
  const int64_t digits = bound.Int(0, 0);
  const std::string method = bound.Has(1) ? bound.RequireString(1).text() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    rt.Fail("method must be common, ceil or floor");
  }
  RequireDefined(rt, input);
  if (!input.IsNumber()) rt.Fail("type {} doesn't define __round__ method", TypeName(input));
  if (method == "common") {
    if (input.IsInteger()) return Value::Int(RoundInt(rt, input.int_value(), digits));
    return Value::Float(RoundFloat(input.number(), digits));
  }
  if (digits > 300 || digits < -300) rt.Fail("round precision {} is out of range", digits);
  const Value unit = Arithmetic(rt, Op::kPow, Value::Int(10), Value::Int(digits));
  const double scaled = Arithmetic(rt, Op::kMul, input, unit).number();
  if (!std::isfinite(scaled)) rt.Fail("cannot convert float {} to integer", scaled);
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  // Python converts to an integer here, which has no negative zero.
  return Value::Float((whole == 0 ? 0.0 : whole) / unit.number());
}

}  // namespace

std::vector<NamedFilter> NumberFilters() {
  return {{"int", IntFilter}, {"float", FloatFilter}, {"abs", Abs}, {"round", Round}};
}

}  // namespace litecache::tokenizer::jinja
