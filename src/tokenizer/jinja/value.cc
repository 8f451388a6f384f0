#include "tokenizer/jinja/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

namespace {
// For fewer entries, a linear search is faster than building and hashing keys.
constexpr size_t kIndexFrom = 16;
// A tuple whose items share their values may have any number of them.
constexpr size_t kTupleKeyBytes = 64 << 10;

// rt: null for keys of dicts, whose size HashKey() has bounded.
bool EqualValues(Runtime* rt, const Value& a, const Value& b) {
  if (rt != nullptr) rt->Step();
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsInteger() && b.IsInteger()) return a.int_value() == b.int_value();
    return a.number() == b.number();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.text() == b.text();
    case Type::kList:
    case Type::kTuple: {
      const auto& x = a.items();
      const auto& y = b.items();
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!EqualValues(rt, x[i], y[i])) return false;
      }
      return true;
    }
    case Type::kDict: {
      const auto& x = a.As<Dict>();
      const auto& y = b.As<Dict>();
      if (x.size() != y.size()) return false;
      for (const auto& [key, value] : x.entries()) {
        const Value* other = y.Find(key);
        if (other == nullptr || !EqualValues(rt, value, *other)) return false;
      }
      return true;
    }
    case Type::kRange: {
      const auto& x = a.As<RangeObject>();
      const auto& y = b.As<RangeObject>();
      const int64_t size = x.size();
      return size == y.size() && (size == 0 || x.start == y.start) &&
             (size <= 1 || x.step == y.step);
    }
    case Type::kDictView: {
      const auto& x = a.As<DictViewObject>();
      const auto& y = b.As<DictViewObject>();
      if (!x.IsSet() || !y.IsSet()) return a.object() == b.object();
      if (x.dict->size() != y.dict->size()) return false;
      if (x.kind != y.kind) return x.dict->size() == 0;
      for (const auto& [key, value] : x.dict->entries()) {
        const Value* other = y.dict->Find(key);
        if (other == nullptr || (x.kind == ViewKind::kItems && !EqualValues(rt, value, *other)))
          return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

}  // namespace

Value Value::String(MarkedString text) {
  auto object = std::make_shared<StringObject>();
  object->value = std::move(text);
  return Of(Type::kString, std::move(object));
}

Value Value::Undefined(std::string message) {
  auto object = std::make_shared<UndefinedObject>();
  object->message = std::move(message);
  return Of(Type::kUndefined, std::move(object));
}

const MarkedString& Value::string() const { return As<StringObject>().value; }

const std::vector<Value>& Value::items() const { return As<SequenceObject>().items; }

std::string Value::UndefinedMessage() const {
  return object_ == nullptr ? "value is undefined" : As<UndefinedObject>().message;
}

const size_t* Dict::FindIndex(const std::string& hash_key) const {
  auto found = index_.find(hash_key);
  return found == index_.end() ? nullptr : &found->second;
}

const Value* Dict::Find(const Value& key) const {
  if (entries_.size() < kIndexFrom) {
    for (const auto& [k, v] : entries_) {
      if (EqualValues(nullptr, k, key)) return &v;
    }
    return nullptr;
  }
  const auto hash_key = HashKey(key);
  const size_t* index = hash_key ? FindIndex(*hash_key) : nullptr;
  return index == nullptr ? nullptr : &entries_[*index].second;
}

const Value* Dict::Find(std::string_view key) const {
  if (entries_.size() >= kIndexFrom) return Find(Value::String(std::string(key)));
  for (const auto& [k, v] : entries_) {
    if (k.IsString() && k.text() == key) return &v;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  if (const Value* found = Find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) index_[*HashKey(entries_[i].first)] = i;
  } else if (entries_.size() > kIndexFrom) {
    index_[*HashKey(entries_.back().first)] = entries_.size() - 1;
  }
}

void Dict::Clear() {
  entries_.clear();
  index_.clear();
}

int64_t RangeObject::size() const {
  // Unsigned arithmetic can represent the distance of any two int64.
  const auto from = static_cast<uint64_t>(start);
  const auto to = static_cast<uint64_t>(stop);
  uint64_t count = 0;
  if (step > 0 && start < stop) count = (to - from - 1) / static_cast<uint64_t>(step) + 1;
  if (step < 0 && start > stop) count = (from - to - 1) / -static_cast<uint64_t>(step) + 1;
  return static_cast<int64_t>(std::min(count, static_cast<uint64_t>(INT64_MAX)));
}

std::string TypeName(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return value.string().markup() ? "Markup" : "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kDict:
      return "dict";
    case Type::kRange:
      return "range";
    case Type::kDictView: {
      constexpr const char* kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[static_cast<int>(value.As<DictViewObject>().kind)];
    }
    case Type::kIterator:
      return value.As<Iterator>().name();
    case Type::kNamespace:
      return "Namespace";
    case Type::kCallable:
      return value.As<Callable>().TypeName();
  }
  return "object";
}

bool Truthy(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return value.int_value() != 0;
    case Type::kFloat:
      return value.number() != 0;
    case Type::kString:
      return !value.string().empty();
    case Type::kList:
    case Type::kTuple:
      return !value.items().empty();
    case Type::kDict:
      return value.As<Dict>().size() != 0;
    case Type::kRange:
      return value.As<RangeObject>().size() != 0;
    case Type::kDictView:
      return value.As<DictViewObject>().dict->size() != 0;
    case Type::kIterator:
    case Type::kNamespace:
    case Type::kCallable:
      return true;
  }
  return true;
}

std::optional<std::string> HashKey(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return "u";
    case Type::kNone:
      return "n";
    case Type::kBool:
    case Type::kInt:
      return fmt::format("i{}", value.int_value());
    case Type::kFloat: {
      const double d = value.number();
      if (std::floor(d) == d && std::fabs(d) < 9e18) {
        return fmt::format("i{}", static_cast<int64_t>(d));
      }
      return fmt::format("f{}", d);
    }
    case Type::kString:
      return "s" + value.text();
    case Type::kTuple: {
      std::string key = "(";
      for (const Value& item : value.items()) {
        auto part = HashKey(item);
        if (!part) return std::nullopt;
        key += fmt::format("{}:{}", part->size(), *part);
        if (key.size() > kTupleKeyBytes) {
          throw InvalidArgument("chat template: a tuple that is a key takes over {} bytes",
                                kTupleKeyBytes);
        }
      }
      return key;
    }
    case Type::kRange: {
      const auto& range = value.As<RangeObject>();
      return fmt::format("r{},{},{}", range.start, range.stop, range.step);
    }
    case Type::kIterator:
    case Type::kNamespace:
    case Type::kCallable:
      return fmt::format("o{}", static_cast<const void*>(value.object()));
    case Type::kDictView:
      // Keys and items compare as sets and so have no hash; values compare by identity.
      if (value.As<DictViewObject>().IsSet()) return std::nullopt;
      return fmt::format("o{}", static_cast<const void*>(value.object()));
    case Type::kList:
    case Type::kDict:
      return std::nullopt;
  }
  return std::nullopt;
}

bool Equal(Runtime& rt, const Value& a, const Value& b) { return EqualValues(&rt, a, b); }

}  // namespace litecache::tokenizer::jinja
