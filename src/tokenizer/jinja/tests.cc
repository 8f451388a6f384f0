#include <cmath>
#include <unordered_map>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

template <bool (*Predicate)(const Value&)>
bool Unary(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "test", args, {});
  return Predicate(value);
}

template <Op O>
bool Comparison(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "comparison test", args, {"other"}, 1);
  return Compare(rt, O, value, bound[0]);
}

bool IsRemainder(Runtime& rt, const Value& value, int64_t divisor, int64_t remainder) {
  const Value mod = Arithmetic(rt, Op::kMod, value, Value::Int(divisor));
  return Equal(rt, mod, Value::Int(remainder));
}

bool Odd(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "odd", args, {});
  return IsRemainder(rt, value, 2, 1);
}

bool Even(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "even", args, {});
  return IsRemainder(rt, value, 2, 0);
}

bool DivisibleBy(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "divisibleby", args, {"num"}, 1);
  return Equal(rt, Arithmetic(rt, Op::kMod, value, bound[0]), Value::Int(0));
}

bool SameAs(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "sameas", args, {"other"}, 1);
  const Value& other = bound[0];
  if (value.type() != other.type()) return false;
  if (value.IsNone()) return true;
  if (value.Is(Type::kBool)) return Equal(rt, value, other);
  if (value.IsNumber() || value.IsString()) {
    // Whether equal numbers or strings are the same object depends on the Python interpreter.
    rt.FailUnsupported("the test 'sameas' of " + TypeName(value) + " values is not supported");
  }
  return value.object() == other.object();
}

bool In(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "in", args, {"seq"}, 1);
  return Contains(rt, bound[0], value);
}

bool IsLowerTest(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "lower", args, {});
  return HasOnlyLower(Str(rt, value).text());
}

bool IsUpperTest(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "upper", args, {});
  return HasOnlyUpper(Str(rt, value).text());
}

bool IsFilter(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "filter", args, {});
  if (!HashKey(value)) rt.Fail("unhashable type: '{}'", TypeName(value));
  return value.IsString() && FindFilter(value.text()) != nullptr;
}

bool IsTest(Runtime& rt, const Value& value, CallArgs& args) {
  const BoundArgs bound(rt, "test", args, {});
  if (!HashKey(value)) rt.Fail("unhashable type: '{}'", TypeName(value));
  return value.IsString() && FindTest(value.text()) != nullptr;
}

bool Defined(const Value& v) { return !v.IsUndefined(); }
bool Undefined(const Value& v) { return v.IsUndefined(); }
bool None(const Value& v) { return v.IsNone(); }
bool Boolean(const Value& v) { return v.Is(Type::kBool); }
bool True(const Value& v) { return v.Is(Type::kBool) && v.bool_value(); }
bool False(const Value& v) { return v.Is(Type::kBool) && !v.bool_value(); }
bool Integer(const Value& v) { return v.Is(Type::kInt); }
bool Float(const Value& v) { return v.Is(Type::kFloat); }
bool Number(const Value& v) { return v.IsNumber(); }
bool String(const Value& v) { return v.IsString(); }
bool Mapping(const Value& v) { return v.Is(Type::kDict); }
bool IterableTest(const Value& v) { return IsIterable(v); }
bool Sequence(const Value& v) {
  return v.IsUndefined() || v.IsString() || v.IsSequence() || v.Is(Type::kDict) ||
         v.Is(Type::kRange);
}
bool CallableTest(const Value& v) { return v.Is(Type::kCallable) || v.IsUndefined(); }
bool Escaped(const Value& v) { return v.IsString() && v.string().markup(); }

const std::unordered_map<std::string_view, TestFunction>& Tests() {
  static const std::unordered_map<std::string_view, TestFunction> tests = {
      {"odd", Odd},
      {"even", Even},
      {"divisibleby", DivisibleBy},
      {"defined", Unary<Defined>},
      {"undefined", Unary<Undefined>},
      {"filter", IsFilter},
      {"test", IsTest},
      {"none", Unary<None>},
      {"boolean", Unary<Boolean>},
      {"false", Unary<False>},
      {"true", Unary<True>},
      {"integer", Unary<Integer>},
      {"float", Unary<Float>},
      {"number", Unary<Number>},
      {"string", Unary<String>},
      {"mapping", Unary<Mapping>},
      {"sequence", Unary<Sequence>},
      {"iterable", Unary<IterableTest>},
      {"callable", Unary<CallableTest>},
      {"escaped", Unary<Escaped>},
      {"lower", IsLowerTest},
      {"upper", IsUpperTest},
      {"sameas", SameAs},
      {"in", In},
      {"==", Comparison<Op::kEq>},
      {"eq", Comparison<Op::kEq>},
      {"equalto", Comparison<Op::kEq>},
      {"!=", Comparison<Op::kNe>},
      {"ne", Comparison<Op::kNe>},
      {">", Comparison<Op::kGt>},
      {"gt", Comparison<Op::kGt>},
      {"greaterthan", Comparison<Op::kGt>},
      {">=", Comparison<Op::kGe>},
      {"ge", Comparison<Op::kGe>},
      {"<", Comparison<Op::kLt>},
      {"lt", Comparison<Op::kLt>},
      {"lessthan", Comparison<Op::kLt>},
      {"<=", Comparison<Op::kLe>},
      {"le", Comparison<Op::kLe>},
  };
  return tests;
}

}  // namespace

TestFunction FindTest(std::string_view name) {
  const auto found = Tests().find(name);
  return found == Tests().end() ? nullptr : found->second;
}

void FailUnknownTest(std::string_view name, int line) {
  throw InvalidArgument("chat template line {}: no test named '{}'", line, name);
}

bool ApplyTest(Runtime& rt, std::string_view name, const Value& input, CallArgs& args) {
  rt.Step();
  rt.Touch(input);
  const TestFunction test = FindTest(name);
  if (test == nullptr) FailUnknownTest(name, rt.line());
  return test(rt, input, args);
}

}  // namespace litecache::tokenizer::jinja
