#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

class Function : public Callable {
 public:
  Function(std::string name, NativeFunction function)
      : name_(std::move(name)), function_(std::move(function)) {}
  Value Call(Runtime& rt, CallArgs& args) override { return function_(rt, args); }
  std::string Repr() const override { return "<function " + name_ + ">"; }

 private:
  std::string name_;
  NativeFunction function_;
};

std::string ObjectTypeRepr(const Value& object) {
  if (object.IsNone()) return "None";
  return TypeName(object) + " object";
}

// The result of getattr(): methods, and the attributes of namespaces, loops and macros.
std::optional<Value> NativeAttribute(Runtime& rt, const Value& object, const std::string& name) {
  if (name.starts_with("__") && name.ends_with("__")) {
    return Value::Undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, TypeName(object)));
  }
  switch (object.type()) {
    case Type::kString:
      return StringMethod(rt, object, name);
    case Type::kNamespace: {
      const Value* found = object.As<NamespaceObject>().attributes.Find(name);
      return found == nullptr ? std::nullopt : std::optional<Value>(*found);
    }
    case Type::kCallable:
      return object.As<Callable>().Attribute(rt, name);
    default:
      return ContainerMethod(rt, object, name);
  }
}

}  // namespace

Value MakeFunction(std::string name, NativeFunction function) {
  return Value::Of(Type::kCallable,
                   std::make_shared<Function>(std::move(name), std::move(function)));
}

Value GetAttribute(Runtime& rt, const Value& object, const std::string& name) {
  RequireDefined(rt, object);
  if (auto value = NativeAttribute(rt, object, name)) return *value;
  if (object.Is(Type::kDict)) {
    if (const Value* found = object.As<Dict>().Find(name)) return *found;
  }
  return Value::Undefined(fmt::format("'{}' has no attribute '{}'", ObjectTypeRepr(object), name));
}

Value GetItem(Runtime& rt, const Value& object, const Value& key) {
  if (auto value = Subscript(rt, object, key)) return *value;
  if (key.IsString()) {
    if (auto value = NativeAttribute(rt, object, key.text())) return *value;
    return Value::Undefined(
        fmt::format("'{}' has no attribute '{}'", ObjectTypeRepr(object), key.text()));
  }
  MarkedString repr;
  AppendRepr(rt, key, &repr);
  return Value::Undefined(fmt::format("{} has no element {}", ObjectTypeRepr(object), repr.text()));
}

Value GetPath(Runtime& rt, Value item, const Value& path, const std::optional<Value>& missing) {
  if (path.IsNone()) return item;
  const auto step = [&](const Value& key) {
    item = GetItem(rt, item, key);
    if (missing.has_value() && item.IsUndefined()) item = *missing;
  };
  if (!path.IsString()) {
    step(path);
    return item;
  }
  const std::string& text = path.text();
  size_t begin = 0;
  while (true) {
    const size_t dot = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, dot - begin);
    const bool number = !part.empty() && part.size() < 18 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    step(number ? Value::Int(std::stoll(part)) : Value::String(part));
    if (dot == text.size()) return item;
    begin = dot + 1;
  }
}

}  // namespace litecache::tokenizer::jinja
