// Values of the template language: the Python values that a template can create or receive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/jinja/marked_string.h"

namespace litecache::tokenizer::jinja {

class Runtime;
class Value;

enum class Type {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kDictView,
  kIterator,
  kNamespace,
  kCallable,  // macros, bound methods, global functions, loop, cycler, joiner
};

// The data behind a Value that is not a scalar. Immutable once a template can access it, except for
// iterators (they advance) and namespaces.
struct Object {
  virtual ~Object() = default;
};

class Value {
 public:
  Value() = default;  // an undefined without a name
  static Value None() { return Value(Type::kNone); }
  static Value Bool(bool b) {
    Value v(Type::kBool);
    v.int_ = b;
    return v;
  }
  static Value Int(int64_t i) {
    Value v(Type::kInt);
    v.int_ = i;
    return v;
  }
  static Value Float(double d) {
    Value v(Type::kFloat);
    v.float_ = d;
    return v;
  }
  static Value String(std::string text) { return String(MarkedString(std::move(text))); }
  static Value String(MarkedString text);
  // `message` is the error of every use other than printing and testing.
  static Value Undefined(std::string message);
  static Value Of(Type type, std::shared_ptr<Object> object) {
    Value v(type);
    v.object_ = std::move(object);
    return v;
  }

  Type type() const { return type_; }
  bool Is(Type type) const { return type_ == type; }
  bool IsUndefined() const { return type_ == Type::kUndefined; }
  bool IsNone() const { return type_ == Type::kNone; }
  bool IsString() const { return type_ == Type::kString; }
  bool IsInteger() const { return type_ == Type::kInt || type_ == Type::kBool; }  // Python's int
  bool IsNumber() const { return IsInteger() || type_ == Type::kFloat; }
  bool IsSequence() const { return type_ == Type::kList || type_ == Type::kTuple; }

  bool bool_value() const { return int_ != 0; }
  int64_t int_value() const { return int_; }
  double number() const { return type_ == Type::kFloat ? float_ : static_cast<double>(int_); }
  const MarkedString& string() const;
  const std::string& text() const { return string().text(); }
  const std::vector<Value>& items() const;  // of a list or tuple
  std::string UndefinedMessage() const;

  template <typename T>
  T& As() const {
    return static_cast<T&>(*object_);
  }
  template <typename T>
  std::shared_ptr<T> Share() const {
    return std::static_pointer_cast<T>(object_);
  }
  const Object* object() const { return object_.get(); }

 private:
  explicit Value(Type type) : type_(type) {}

  Type type_ = Type::kUndefined;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  MarkedString value;
};

struct UndefinedObject : Object {
  std::string message;
};

// Containers store their nesting depth, so that no traversal (printing, comparing, destroying) can
// exhaust the stack: see Runtime::CheckDepth.
struct Container : Object {
  int depth = 1;
};

struct SequenceObject : Container {
  std::vector<Value> items;
};

// Keeps insertion order. Small dicts are searched linearly; larger ones use a hash index.
class Dict : public Container {
 public:
  // The key must be hashable (HashKey).
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  void Set(Value key, Value value);
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  void Clear();

 private:
  const size_t* FindIndex(const std::string& hash_key) const;
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
};

enum class ViewKind { kKeys, kValues, kItems };

struct DictViewObject : Container {
  std::shared_ptr<Dict> dict;
  ViewKind kind = ViewKind::kKeys;
  bool IsSet() const { return kind != ViewKind::kValues; }  // keys and items compare as sets
};

// The source of items for a for loop or filter; also the lazy results of map, select and the like.
struct Iterator : Container {
  // Stores the next item, or returns false at the end.
  virtual bool Next(Runtime& rt, Value* item) = 0;
  // Python's name of the type, for messages.
  virtual const char* name() const { return "generator"; }
};

struct NamespaceObject : Object {
  Dict attributes;
};

// The positional and keyword arguments of one call.
struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

struct Callable : Object {
  virtual Value Call(Runtime& rt, CallArgs& args) = 0;
  virtual std::string Repr() const = 0;
  virtual std::optional<Value> Attribute(Runtime& rt, const std::string& name) {
    return std::nullopt;
  }
  virtual std::string TypeName() const { return "function"; }
};

// Python's name of the type: 'str', 'NoneType', 'dict_items', ...
std::string TypeName(const Value& value);

// Truth as Python's bool(): empty strings, containers, zero, None and Undefined are false.
bool Truthy(const Value& value);

// Equal strings for keys that Python treats as equal (1, 1.0 and True are one key), or nullopt for
// unhashable values (list, dict).
std::optional<std::string> HashKey(const Value& value);

// Costs a step for each value compared: shared values make the comparison of a small template
// exponential.
bool Equal(Runtime& rt, const Value& a, const Value& b);

}  // namespace litecache::tokenizer::jinja
