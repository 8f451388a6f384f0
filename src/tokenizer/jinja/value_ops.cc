#include "tokenizer/jinja/value_ops.h"

#include <algorithm>

#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/unicode.h"

namespace litecache::tokenizer::jinja {

namespace {

constexpr const char* kCompareNames[] = {"==", "!=", "<", "<=", ">", ">="};

class Generator : public Iterator {
 public:
  Generator(std::function<bool(Runtime&, Value*)> next, const char* name)
      : next_(std::move(next)), name_(name) {}
  bool Next(Runtime& rt, Value* item) override {
    rt.Step();
    // A Python generator that has ended, even by an error, stays exhausted.
    if (done_) return false;
    done_ = true;
    const bool more = next_(rt, item);
    done_ = !more;
    return more;
  }
  const char* name() const override { return name_; }

 private:
  std::function<bool(Runtime&, Value*)> next_;
  const char* name_;
  bool done_ = false;
};

// Compares two values that can be ordered (-1, 0 or 1); fails otherwise.
int Order(Runtime& rt, Op op, const Value& a, const Value& b) {
  rt.Step();
  if (a.IsInteger() && b.IsInteger()) {
    return a.int_value() < b.int_value() ? -1 : a.int_value() > b.int_value();
  }
  if (a.IsString() && b.IsString()) {
    // Byte order of UTF-8 is code point order.
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0;
  }
  if (a.IsSequence() && a.type() == b.type()) {
    const auto& x = a.items();
    const auto& y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!Equal(rt, x[i], y[i])) return Order(rt, op, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  RequireDefined(rt, a);
  RequireDefined(rt, b);
  if (a.IsNumber() && b.IsNumber()) {
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  rt.Fail("'{}' not supported between instances of '{}' and '{}'",
          kCompareNames[static_cast<int>(op) - static_cast<int>(Op::kEq)], TypeName(a),
          TypeName(b));
}

Value ViewItem(Runtime& rt, ViewKind kind, const std::pair<Value, Value>& entry) {
  if (kind == ViewKind::kKeys) return entry.first;
  if (kind == ViewKind::kValues) return entry.second;
  return rt.MakePair(entry.first, entry.second);
}

// Whether `b` contains all keys or items of the view `a`.
bool IsSubset(Runtime& rt, const Value& a, const Value& b) {
  const auto& view = a.As<DictViewObject>();
  return std::all_of(view.dict->entries().begin(), view.dict->entries().end(),
                     [&](const std::pair<Value, Value>& entry) {
                       rt.Step();
                       return Contains(rt, b, ViewItem(rt, view.kind, entry));
                     });
}

bool CompareSets(Runtime& rt, Op op, const Value& a, const Value& b) {
  if (op == Op::kGt || op == Op::kGe) {
    return CompareSets(rt, op == Op::kGt ? Op::kLt : Op::kLe, b, a);
  }
  const size_t x = a.As<DictViewObject>().dict->size(), y = b.As<DictViewObject>().dict->size();
  return (op == Op::kLt ? x < y : x <= y) && IsSubset(rt, a, b);
}

bool HasNan(const Value& a, const Value& b) {
  return a.IsNumber() && b.IsNumber() && (a.number() != a.number() || b.number() != b.number());
}

struct SliceBounds {
  int64_t start, stop, step, count;
};

SliceBounds ResolveSlice(Runtime& rt, int64_t size, const Value& start, const Value& stop,
                         const Value& step) {
  constexpr const char* kWhat = "slice indices must be integers or None";
  SliceBounds bounds;
  bounds.step = step.IsNone() ? 1 : ToIndex(rt, step, kWhat);
  if (bounds.step == 0) rt.Fail("slice step cannot be zero");
  if (bounds.step < -INT64_MAX) bounds.step = -INT64_MAX;
  const bool forward = bounds.step > 0;
  const auto resolve = [&](const Value& value, int64_t missing) {
    if (value.IsNone()) return missing;
    int64_t i = ToIndex(rt, value, kWhat);
    if (i < 0) return std::max(i + size, forward ? int64_t{0} : int64_t{-1});
    return std::min(i, forward ? size : size - 1);
  };
  bounds.start = resolve(start, forward ? 0 : size - 1);
  bounds.stop = resolve(stop, forward ? size : -1);
  RangeObject range;
  range.start = bounds.start;
  range.stop = bounds.stop;
  range.step = bounds.step;
  bounds.count = range.size();
  return bounds;
}

Value SliceString(Runtime& rt, const MarkedString& string, const Value& start, const Value& stop,
                  const Value& step) {
  const std::string& text = string.text();
  rt.Touch(text.size());
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  const SliceBounds bounds = ResolveSlice(rt, size, start, stop, step);
  MarkedString result;
  if (bounds.count == 0) {
    // Nothing to copy.
  } else if (bounds.step == 1) {
    const size_t begin = ByteOffset(text, static_cast<size_t>(bounds.start));
    const size_t length =
        ByteOffset(std::string_view(text).substr(begin), static_cast<size_t>(bounds.count));
    result.Append(string, begin, begin + length);
  } else {
    const std::vector<size_t> offsets = CodePointOffsets(text);
    for (int64_t i = 0; i < bounds.count; ++i) {
      const int64_t at = bounds.start + i * bounds.step;
      result.Append(string, offsets[static_cast<size_t>(at)], offsets[static_cast<size_t>(at) + 1]);
    }
  }
  result.set_markup(string.markup());
  return rt.MakeString(std::move(result));
}

}  // namespace

int64_t ToIndex(Runtime& rt, const Value& value, const char* what) {
  RequireDefined(rt, value);
  if (!value.IsInteger()) rt.Fail("{}, not '{}'", what, TypeName(value));
  return value.int_value();
}

bool IsSetLike(const Value& value) {
  return value.type() == Type::kDictView && value.As<DictViewObject>().IsSet();
}

bool Less(Runtime& rt, const Value& a, const Value& b) { return Compare(rt, Op::kLt, a, b); }

bool Compare(Runtime& rt, Op op, const Value& a, const Value& b) {
  if (a.IsString() && b.IsString()) rt.Touch(std::min(a.text().size(), b.text().size()));
  switch (op) {
    case Op::kEq:
      return Equal(rt, a, b);
    case Op::kNe:
      return !Equal(rt, a, b);
    case Op::kIn:
      return Contains(rt, b, a);
    case Op::kNotIn:
      return !Contains(rt, b, a);
    default:
      break;
  }
  if (HasNan(a, b)) return false;
  if (IsSetLike(a) && IsSetLike(b)) return CompareSets(rt, op, a, b);
  const int order = Order(rt, op, a, b);
  switch (op) {
    case Op::kLt:
      return order < 0;
    case Op::kLe:
      return order <= 0;
    case Op::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool Contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (!item.IsString()) {
        RequireDefined(rt, item);
        rt.Fail("'in <string>' requires string as left operand, not {}", TypeName(item));
      }
      rt.Touch(container);
      return FindText(container.text(), item.text()) != std::string::npos;
    case Type::kDict:
      if (!HashKey(item)) rt.Fail("unhashable type: '{}'", TypeName(item));
      return container.As<Dict>().Find(item) != nullptr;
    case Type::kDictView: {
      const auto& view = container.As<DictViewObject>();
      if (view.kind == ViewKind::kValues) break;
      const bool items = view.kind == ViewKind::kItems;
      if (items && (item.type() != Type::kTuple || item.items().size() != 2)) return false;
      const Value& key = items ? item.items()[0] : item;
      if (!HashKey(key)) rt.Fail("unhashable type: '{}'", TypeName(key));
      const Value* value = view.dict->Find(key);
      return value != nullptr && (!items || Equal(rt, *value, item.items()[1]));
    }
    default:
      break;
  }
  if (!IsIterable(container)) rt.Fail("argument of type '{}' is not iterable", TypeName(container));
  auto iterator = Iterate(rt, container);
  Value candidate;
  while (iterator->Next(rt, &candidate)) {
    rt.Step();
    if (Equal(rt, candidate, item)) return true;
  }
  return false;
}

std::optional<int64_t> Length(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return static_cast<int64_t>(CountCodePoints(value.text()));
    case Type::kList:
    case Type::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Type::kDict:
      return static_cast<int64_t>(value.As<Dict>().size());
    case Type::kDictView:
      return static_cast<int64_t>(value.As<DictViewObject>().dict->size());
    case Type::kRange:
      return value.As<RangeObject>().size();
    default:
      return std::nullopt;
  }
}

bool IsIterable(const Value& value) {
  return Length(value).has_value() || value.Is(Type::kIterator);
}

std::shared_ptr<Iterator> MakeGenerator(std::function<bool(Runtime&, Value*)> next,
                                        const char* name) {
  return std::make_shared<Generator>(std::move(next), name);
}

std::shared_ptr<Iterator> IterateVector(std::vector<Value> items, const char* name) {
  return MakeGenerator(
      [items = std::move(items), i = size_t{0}](Runtime&, Value* item) mutable {
        if (i == items.size()) return false;
        *item = items[i++];
        return true;
      },
      name);
}

std::shared_ptr<Iterator> Iterate(Runtime& rt, const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return MakeGenerator([](Runtime&, Value*) { return false; });
    case Type::kIterator:
      return value.Share<Iterator>();
    case Type::kString:
      return MakeGenerator([value, at = size_t{0}](Runtime& rt, Value* item) mutable {
        const std::string& text = value.text();
        if (at == text.size()) return false;
        const size_t begin = at;
        NextCodePoint(text, &at);
        *item = rt.MakeString(value.string().Sub(begin, at));
        return true;
      });
    case Type::kList:
    case Type::kTuple:
      return MakeGenerator([value, i = size_t{0}](Runtime&, Value* item) mutable {
        if (i == value.items().size()) return false;
        *item = value.items()[i++];
        return true;
      });
    case Type::kDict:
    case Type::kDictView: {
      const bool view = value.Is(Type::kDictView);
      auto dict = view ? value.As<DictViewObject>().dict : value.Share<Dict>();
      const ViewKind kind = view ? value.As<DictViewObject>().kind : ViewKind::kKeys;
      return MakeGenerator([dict, kind, i = size_t{0}](Runtime& rt, Value* item) mutable {
        if (i == dict->size()) return false;
        *item = ViewItem(rt, kind, dict->entries()[i++]);
        return true;
      });
    }
    case Type::kRange:
      return MakeGenerator([value, i = int64_t{0}](Runtime&, Value* item) mutable {
        const auto& range = value.As<RangeObject>();
        if (i == range.size()) return false;
        *item = Value::Int(range.start + i++ * range.step);
        return true;
      });
    default:
      rt.Fail("'{}' object is not iterable", TypeName(value));
  }
}

std::vector<Value> ToVector(Runtime& rt, const Value& value) {
  if (value.IsSequence()) return value.items();
  std::vector<Value> items;
  auto iterator = Iterate(rt, value);
  Value item;
  while (iterator->Next(rt, &item)) {
    items.push_back(item);
    if (static_cast<int64_t>(items.size()) > rt.limits().list_items) {
      rt.ChargeItems(static_cast<int64_t>(items.size()));
    }
  }
  return items;
}

std::optional<Value> Subscript(Runtime& rt, const Value& object, const Value& key) {
  RequireDefined(rt, object);
  if (object.Is(Type::kDict)) {
    if (!HashKey(key)) return std::nullopt;
    const Value* found = object.As<Dict>().Find(key);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  const bool indexable = object.IsString() || object.IsSequence() || object.Is(Type::kRange);
  if (!indexable || !key.IsInteger()) return std::nullopt;
  int64_t index = key.int_value();
  const int64_t size = *Length(object);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  if (object.IsSequence()) return object.items()[static_cast<size_t>(index)];
  if (object.Is(Type::kRange)) {
    const auto& range = object.As<RangeObject>();
    return Value::Int(range.start + index * range.step);
  }
  rt.Touch(object);
  const size_t begin = ByteOffset(object.text(), static_cast<size_t>(index));
  size_t end = begin;
  NextCodePoint(object.text(), &end);
  MarkedString character = object.string().Sub(begin, end);
  character.set_markup(object.string().markup());
  return rt.MakeString(std::move(character));
}

Value Slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
            const Value& step) {
  RequireDefined(rt, object);
  if (object.IsString()) return SliceString(rt, object.string(), start, stop, step);
  if (object.Is(Type::kRange)) {
    const auto& range = object.As<RangeObject>();
    const SliceBounds bounds = ResolveSlice(rt, range.size(), start, stop, step);
    auto result = std::make_shared<RangeObject>();
    const auto at = [&](int64_t index) {
      int64_t value = 0;
      if (__builtin_mul_overflow(index, range.step, &value) ||
          __builtin_add_overflow(value, range.start, &value)) {
        rt.Fail("integer over 64 bits is not supported");
      }
      return value;
    };
    if (__builtin_mul_overflow(range.step, bounds.step, &result->step)) {
      rt.Fail("integer over 64 bits is not supported");
    }
    result->start = at(bounds.start);
    result->stop = at(bounds.stop);
    return Value::Of(Type::kRange, std::move(result));
  }
  if (object.Is(Type::kDict)) rt.Fail("unhashable type: 'slice'");
  if (!object.IsSequence()) rt.Fail("'{}' object is not subscriptable", TypeName(object));
  const auto& items = object.items();
  const SliceBounds bounds =
      ResolveSlice(rt, static_cast<int64_t>(items.size()), start, stop, step);
  std::vector<Value> result;
  result.reserve(static_cast<size_t>(bounds.count));
  for (int64_t i = 0; i < bounds.count; ++i) {
    const int64_t at = bounds.start + i * bounds.step;
    result.push_back(items[static_cast<size_t>(at)]);
  }
  return object.Is(Type::kList) ? rt.MakeList(std::move(result)) : rt.MakeTuple(std::move(result));
}

}  // namespace litecache::tokenizer::jinja
