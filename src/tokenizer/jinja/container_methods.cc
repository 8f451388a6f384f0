#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

namespace {

bool OneOf(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value Unsafe(const Value& object, const std::string& name) {
  return Value::Undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe: templates "
                  "cannot change what they are given",
                  name, TypeName(object)));
}

// A method that Python has and this interpreter lacks: it exists but cannot be called.
Value Missing(const Value& object, const std::string& name) {
  return MakeFunction(name, [type = TypeName(object), name](Runtime& rt, CallArgs&) -> Value {
    rt.FailUnsupported(fmt::format("the method {}.{}() is not supported", type, name));
  });
}

Value Count(Runtime& rt, const Value& object, CallArgs& args) {
  const BoundArgs bound(rt, "count", args, {"/value"}, 1);
  int64_t count = 0;
  for (const Value& item : ToVector(rt, object)) count += Equal(rt, item, bound[0]);
  return Value::Int(count);
}

Value Index(Runtime& rt, const Value& object, CallArgs& args) {
  const BoundArgs bound(rt, "index", args, {"/value", "/start", "/stop"}, 1);
  const std::vector<Value> items = ToVector(rt, object);
  const auto size = static_cast<int64_t>(items.size());
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t stop = clamp(bound.Int(2, size));
  for (int64_t i = clamp(bound.Int(1, 0)); i < stop; ++i) {
    if (Equal(rt, items[static_cast<size_t>(i)], bound[0])) return Value::Int(i);
  }
  rt.Fail("value is not in {}", TypeName(object));
}

Value DictGet(Runtime& rt, const Value& object, CallArgs& args) {
  const BoundArgs bound(rt, "get", args, {"/key", "/default"}, 1);
  if (!HashKey(bound[0])) rt.Fail("unhashable type: '{}'", TypeName(bound[0]));
  const Value* found = object.As<Dict>().Find(bound[0]);
  return found != nullptr ? *found : bound.Get(1, Value::None());
}

std::optional<Value> DictMethod(Runtime& rt, const Value& object, const std::string& name) {
  const auto view = [&](ViewKind kind) {
    return MakeFunction(name, [object, name, kind](Runtime& rt, CallArgs& args) {
      const BoundArgs bound(rt, name, args, {});
      return rt.MakeView(object, kind);
    });
  };
  if (name == "items") return view(ViewKind::kItems);
  if (name == "keys") return view(ViewKind::kKeys);
  if (name == "values") return view(ViewKind::kValues);
  if (name == "get") {
    return MakeFunction(
        name, [object](Runtime& rt, CallArgs& args) { return DictGet(rt, object, args); });
  }
  if (name == "copy") {
    // Dicts are immutable here, so the dict itself serves as its copy.
    return MakeFunction(name, [object](Runtime&, CallArgs&) { return object; });
  }
  if (OneOf(name, {"clear", "pop", "popitem", "setdefault", "update"})) return Unsafe(object, name);
  if (name == "fromkeys") return Missing(object, name);
  return std::nullopt;
}

}  // namespace

std::optional<Value> ContainerMethod(Runtime& rt, const Value& object, const std::string& name) {
  switch (object.type()) {
    case Type::kDict:
      return DictMethod(rt, object, name);
    case Type::kList:
      if (OneOf(name,
                {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})) {
        return Unsafe(object, name);
      }
      if (name == "copy")
        return MakeFunction(name, [object](Runtime&, CallArgs&) { return object; });
      [[fallthrough]];
    case Type::kTuple:
    case Type::kRange:
      if (object.Is(Type::kRange)) {
        const auto& range = object.As<RangeObject>();
        if (name == "start") return Value::Int(range.start);
        if (name == "stop") return Value::Int(range.stop);
        if (name == "step") return Value::Int(range.step);
      }
      if (name == "count") {
        return MakeFunction(
            name, [object](Runtime& rt, CallArgs& args) { return Count(rt, object, args); });
      }
      if (name == "index") {
        return MakeFunction(
            name, [object](Runtime& rt, CallArgs& args) { return Index(rt, object, args); });
      }
      return std::nullopt;
    case Type::kDictView:
      if (OneOf(name, {"isdisjoint", "mapping"})) return Missing(object, name);
      return std::nullopt;
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
      if (OneOf(name,
                {"real", "imag", "numerator", "denominator", "conjugate", "bit_length", "bit_count",
                 "to_bytes", "from_bytes", "as_integer_ratio", "is_integer", "hex", "fromhex"})) {
        rt.FailUnsupported(
            fmt::format("the attribute {}.{} is not supported", TypeName(object), name));
      }
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace litecache::tokenizer::jinja
