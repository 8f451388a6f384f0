#include <cmath>

#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

namespace {

constexpr const char* kOpNames[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void FailOverflow(Runtime& rt) { rt.Fail("integer over 64 bits is not supported"); }

int64_t FloorDiv(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

double FloatMod(double a, double b) {
  double mod = std::fmod(a, b);
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) mod += b;
  } else {
    mod = std::copysign(0.0, b);
  }
  return mod;
}

// As CPython's float_floor_div: exact even if a / b rounds up to the next integer.
double FloatFloorDiv(double a, double b) {
  double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return std::copysign(0.0, a / b);
  double floor = std::floor(div);
  if (div - floor > 0.5) floor += 1;
  return floor;
}

Value IntPow(Runtime& rt, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) rt.Fail("0.0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1) {
      if (__builtin_mul_overflow(result, base, &result)) FailOverflow(rt);
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) FailOverflow(rt);
  }
  return Value::Int(result);
}

Value IntArithmetic(Runtime& rt, Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow(rt);
      return Value::Int(result);
    case Op::kPow:
      return IntPow(rt, a, b);
    default:
      break;
  }
  if (b == 0)
    rt.Fail("{}", op == Op::kDiv ? "division by zero" : "integer division or modulo by zero");
  if (op == Op::kDiv) return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (a == INT64_MIN && b == -1) {
    if (op == Op::kMod) return Value::Int(0);
    FailOverflow(rt);
  }
  const int64_t quotient = FloorDiv(a, b);
  return Value::Int(op == Op::kFloorDiv ? quotient : a - quotient * b);
}

Value FloatArithmetic(Runtime& rt, Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value::Float(a + b);
    case Op::kSub:
      return Value::Float(a - b);
    case Op::kMul:
      return Value::Float(a * b);
    case Op::kPow:
      if (a == 0 && b < 0) rt.Fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        rt.FailUnsupported("complex numbers are not supported");
      }
      {
        const double result = std::pow(a, b);
        if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
          rt.Fail("numerical result out of range");
        }
        return Value::Float(result);
      }
    default:
      break;
  }
  if (b == 0) {
    rt.Fail("{}", op == Op::kDiv        ? "float division by zero"
                  : op == Op::kFloorDiv ? "float floor division by zero"
                                        : "float modulo");
  }
  if (op == Op::kDiv) return Value::Float(a / b);
  return Value::Float(op == Op::kMod ? FloatMod(a, b) : FloatFloorDiv(a, b));
}

Value Repeat(Runtime& rt, const Value& sequence, int64_t count) {
  if (count < 0) count = 0;
  if (sequence.IsString()) {
    const MarkedString& text = sequence.string();
    if (text.empty()) count = 0;
    int64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<int64_t>(text.size()), count, &bytes)) {
      bytes = INT64_MAX;
    }
    rt.ChargeBytes(static_cast<size_t>(bytes));
    MarkedString result;
    result.Reserve(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < count; ++i) result.Append(text);
    result.set_markup(text.markup());
    return Value::String(std::move(result));
  }
  const auto& items = sequence.items();
  if (items.empty()) count = 0;
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(items.size()), count, &total)) total = INT64_MAX;
  rt.ChargeItems(total);
  std::vector<Value> result;
  result.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < count; ++i) result.insert(result.end(), items.begin(), items.end());
  return sequence.Is(Type::kList) ? rt.MakeList(std::move(result))
                                  : rt.MakeTuple(std::move(result));
}

Value Concatenate(Runtime& rt, const Value& a, const Value& b) {
  if (a.IsString()) {
    rt.ChargeBytes(a.string().size() + b.string().size());
    MarkedString result;
    result.Reserve(a.string().size() + b.string().size());
    const bool markup = a.string().markup() || b.string().markup();
    for (const Value* part : {&a, &b}) {
      if (markup && !part->string().markup()) {
        result.Append(EscapeHtml(part->string()));
      } else {
        result.Append(part->string());
      }
    }
    result.set_markup(markup);
    return Value::String(std::move(result));
  }
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.Is(Type::kList) ? rt.MakeList(std::move(items)) : rt.MakeTuple(std::move(items));
}

}  // namespace

void RequireDefined(Runtime& rt, const Value& value) {
  if (value.IsUndefined()) rt.FailMessage(value.UndefinedMessage());
}

MarkedString EscapeHtml(const MarkedString& string) {
  MarkedString result;
  const std::string& text = string.text();
  size_t done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* entity = text[i] == '&'    ? "&amp;"
                         : text[i] == '<'  ? "&lt;"
                         : text[i] == '>'  ? "&gt;"
                         : text[i] == '\'' ? "&#39;"
                         : text[i] == '"'  ? "&#34;"
                                           : nullptr;
    if (entity == nullptr) continue;
    result.Append(string, done, i);
    result.Append(entity, string.IsInput(i));
    done = i + 1;
  }
  result.Append(string, done, text.size());
  return result;
}

Value Arithmetic(Runtime& rt, Op op, const Value& a, const Value& b) {
  // A string on the left formats whatever is on the right, including an undefined value.
  if (op == Op::kMod && a.IsString()) return PercentFormat(rt, a.string(), b);
  RequireDefined(rt, a);
  // The difference of a dict's keys or items and any iterable (even undefined) is a set.
  if (op == Op::kSub && (IsSetLike(a) || IsSetLike(b))) {
    rt.FailUnsupported("sets are not supported");
  }
  RequireDefined(rt, b);
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsInteger() && b.IsInteger()) return IntArithmetic(rt, op, a.int_value(), b.int_value());
    return FloatArithmetic(rt, op, a.number(), b.number());
  }
  const bool a_repeats = a.IsString() || a.IsSequence();
  const bool b_repeats = b.IsString() || b.IsSequence();
  if (op == Op::kMul && a_repeats && b.IsInteger()) return Repeat(rt, a, b.int_value());
  if (op == Op::kMul && b_repeats && a.IsInteger()) return Repeat(rt, b, a.int_value());
  if (op == Op::kAdd && a_repeats && a.type() == b.type()) return Concatenate(rt, a, b);
  if (op == Op::kAdd && a.IsString()) {
    rt.Fail("can only concatenate str (not \"{}\") to str", TypeName(b));
  }
  rt.Fail("unsupported operand types for {}: '{}' and '{}'", kOpNames[static_cast<int>(op)],
          TypeName(a), TypeName(b));
}

Value Negate(Runtime& rt, const Value& a) {
  RequireDefined(rt, a);
  if (a.IsInteger()) {
    if (a.int_value() == INT64_MIN) FailOverflow(rt);
    return Value::Int(-a.int_value());
  }
  if (a.Is(Type::kFloat)) return Value::Float(-a.number());
  rt.Fail("bad operand type for unary -: '{}'", TypeName(a));
}

Value Positive(Runtime& rt, const Value& a) {
  RequireDefined(rt, a);
  if (a.IsInteger()) return Value::Int(a.int_value());
  if (a.Is(Type::kFloat)) return a;
  rt.Fail("bad operand type for unary +: '{}'", TypeName(a));
}

}  // namespace litecache::tokenizer::jinja
