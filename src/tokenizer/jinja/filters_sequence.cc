#include <algorithm>
#include <unordered_set>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value_ops.h"
#include "tokenizer/jinja/value_print.h"

namespace litecache::tokenizer::jinja {

namespace {

Value IgnoreCase(Runtime& rt, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.IsString()) return value;
  return rt.MakeString(Lower(value.string()));
}

Value Default(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "default", args, {"default_value", "boolean"});
  const bool replace = input.IsUndefined() || (bound.Bool(1, false) && !Truthy(input));
  return replace ? bound.Get(0, Value::String("")) : input;
}

Value LengthFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "length", args, {});
  const auto length = Length(input);
  if (!length) rt.Fail("object of type '{}' has no len()", TypeName(input));
  return Value::Int(*length);
}

Value List(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "list", args, {});
  return rt.MakeList(ToVector(rt, input));
}

Value First(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "first", args, {});
  Value item;
  if (Iterate(rt, input)->Next(rt, &item)) return item;
  return Value::Undefined("No first item, sequence was empty.");
}

Value Last(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "last", args, {});
  if (!Length(input)) rt.Fail("'{}' object is not reversible", TypeName(input));
  if (*Length(input) == 0) return Value::Undefined("No last item, sequence was empty.");
  if (input.IsString() || input.IsSequence()) return *Subscript(rt, input, Value::Int(-1));
  return ToVector(rt, input).back();
}

Value Reverse(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "reverse", args, {});
  if (input.IsString()) {
    return Slice(rt, input, Value::None(), Value::None(), Value::Int(-1));
  }
  if (!IsIterable(input)) rt.Fail("argument must be iterable");
  std::vector<Value> items = ToVector(rt, input);
  rt.ChargeItems(static_cast<int64_t>(items.size()));
  std::reverse(items.begin(), items.end());
  if (input.Is(Type::kIterator)) return rt.MakeList(std::move(items));
  return rt.MakeIterator(IterateVector(std::move(items), "list_reverseiterator"), input);
}

Value Join(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "join", args, {"d", "attribute"});
  const MarkedString separator = bound.Has(0) ? Str(rt, bound[0]) : MarkedString();
  const Value attribute = bound.Get(1, Value::None());
  auto iterator = Iterate(rt, input);
  MarkedString result;
  Value item;
  for (bool first = true; iterator->Next(rt, &item); first = false) {
    if (!first) result.Append(separator);
    AppendStr(rt, GetPath(rt, item, attribute), &result);
  }
  return rt.MakeString(std::move(result));
}

Value Items(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "items", args, {});
  // A generator: if the input is not a mapping, the error occurs only when it is read.
  return rt.MakeIterator(MakeGenerator([input, i = size_t{0}](Runtime& rt, Value* item) mutable {
                           if (input.IsUndefined()) return false;
                           if (!input.Is(Type::kDict))
                             rt.Fail("can only get item pairs from a mapping");
                           const auto& entries = input.As<Dict>().entries();
                           if (i == entries.size()) return false;
                           *item = rt.MakePair(entries[i].first, entries[i].second);
                           ++i;
                           return true;
                         }),
                         input);
}

// Sorts items by their keys; stable, also in reverse.
std::vector<Value> SortBy(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? Less(rt, keys[b], keys[a]) : Less(rt, keys[a], keys[b]);
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value DictSort(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.Has(1) ? bound.RequireString(1).text() : "key";
  if (by != "key" && by != "value") rt.Fail("dictsort sorts by 'key' or 'value', not '{}'", by);
  RequireDefined(rt, input);
  if (!input.Is(Type::kDict)) rt.Fail("'{}' object has no attribute 'items'", TypeName(input));
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : input.As<Dict>().entries()) {
    pairs.push_back(rt.MakePair(key, value));
    keys.push_back(IgnoreCase(rt, by == "key" ? key : value, bound.Bool(0, false)));
  }
  return rt.MakeList(SortBy(rt, std::move(pairs), keys, bound.Bool(2, false)));
}

Value Sort(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.Bool(1, false);
  std::vector<Value> paths;
  if (bound.Has(2) && bound[2].IsString()) {
    for (MarkedString& part : Split(bound[2].string(), ",", -1, false)) {
      paths.push_back(rt.MakeString(std::move(part)));
    }
  } else {
    paths.push_back(bound.Get(2, Value::None()));
  }
  std::vector<Value> items = ToVector(rt, input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    key.reserve(paths.size());
    for (const Value& path : paths) {
      key.push_back(IgnoreCase(rt, GetPath(rt, item, path), case_sensitive));
    }
    keys.push_back(rt.MakeList(std::move(key)));
  }
  return rt.MakeList(SortBy(rt, std::move(items), keys, bound.Bool(0, false)));
}

Value Unique(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "unique", args, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound.Bool(0, false);
  const Value path = bound.Get(1, Value::None());
  auto seen = std::make_shared<std::unordered_set<std::string>>();
  auto source = std::make_shared<std::shared_ptr<Iterator>>();
  return rt.MakeIterator(MakeGenerator([=](Runtime& rt, Value* item) {
                           if (*source == nullptr) *source = Iterate(rt, input);
                           while ((*source)->Next(rt, item)) {
                             const Value key =
                                 IgnoreCase(rt, GetPath(rt, *item, path), case_sensitive);
                             const auto hash_key = HashKey(key);
                             if (!hash_key) rt.Fail("unhashable type: '{}'", TypeName(key));
                             if (seen->insert(*hash_key).second) return true;
                           }
                           return false;
                         }),
                         input);
}

template <bool Maximum>
Value Extreme(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, Maximum ? "max" : "min", args, {"case_sensitive", "attribute"});
  const bool case_sensitive = bound.Bool(0, false);
  const Value path = bound.Get(1, Value::None());
  auto iterator = Iterate(rt, input);
  Value best, best_key, item;
  bool empty = true;
  while (iterator->Next(rt, &item)) {
    const Value key = IgnoreCase(rt, GetPath(rt, item, path), case_sensitive);
    if (empty || Compare(rt, Maximum ? Op::kGt : Op::kLt, key, best_key)) {
      best = item;
      best_key = key;
    }
    empty = false;
  }
  return empty ? Value::Undefined("No aggregated item, sequence was empty.") : best;
}

Value Sum(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "sum", args, {"attribute", "start"});
  const Value path = bound.Get(0, Value::None());
  Value total = bound.Get(1, Value::Int(0));
  if (total.IsString()) rt.Fail("sum() can't sum strings [use ''.join(seq) instead]");
  auto iterator = Iterate(rt, input);
  Value item;
  while (iterator->Next(rt, &item))
    total = Arithmetic(rt, Op::kAdd, total, GetPath(rt, item, path));
  return total;
}

Value Batch(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "batch", args, {"linecount", "fill_with"}, 1);
  const Value& count = bound[0];
  const Value fill = bound.Get(1, Value::None());
  auto source = std::make_shared<std::shared_ptr<Iterator>>();
  auto pending = std::make_shared<std::vector<Value>>();
  auto ended = std::make_shared<bool>(false);
  return rt.MakeIterator(
      MakeGenerator([=](Runtime& rt, Value* item) {
        if (*source == nullptr) *source = Iterate(rt, input);
        if (*ended) return false;
        Value next;
        while ((*source)->Next(rt, &next)) {
          const bool full = Equal(rt, Value::Int(static_cast<int64_t>(pending->size())), count);
          if (full) *item = rt.MakeList(std::exchange(*pending, {}));
          pending->push_back(next);
          if (full) return true;
        }
        *ended = true;
        if (pending->empty()) return false;
        const auto size = static_cast<int64_t>(pending->size());
        if (!fill.IsNone()) {
          const int64_t missing = ToIndex(rt, count, "linecount must be an integer") - size;
          if (missing > 0) {
            rt.ChargeItems(missing);
            pending->insert(pending->end(), static_cast<size_t>(missing), fill);
          }
        }
        *item = rt.MakeList(std::exchange(*pending, {}));
        return true;
      }),
      input);
}

Value SliceFilter(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "slice", args, {"slices", "fill_with"}, 1);
  const Value fill = bound.Get(1, Value::None());
  const Value& slices_value = bound[0];
  auto items = std::make_shared<std::optional<std::vector<Value>>>();
  auto at = std::make_shared<int64_t>(0);
  return rt.MakeIterator(
      MakeGenerator([=](Runtime& rt, Value* item) {
        const int64_t slices = ToIndex(rt, slices_value, "slices must be an integer");
        if (!items->has_value()) *items = ToVector(rt, input);
        if (slices == 0) rt.Fail("integer division or modulo by zero");
        if (*at >= slices) return false;
        const auto length = static_cast<int64_t>((*items)->size());
        const int64_t each = length / slices;
        const int64_t longer = length % slices;  // the first slices have one more item
        const int64_t begin = *at * each + std::min(*at, longer);
        const int64_t end = begin + each + (*at < longer ? 1 : 0);
        std::vector<Value> part((*items)->begin() + begin, (*items)->begin() + end);
        if (!fill.IsNone() && *at >= longer) part.push_back(fill);
        ++*at;
        *item = rt.MakeList(std::move(part));
        return true;
      }),
      input);
}

Value Attr(Runtime& rt, const Value& input, CallArgs& args) {
  const BoundArgs bound(rt, "attr", args, {"name"}, 1);
  const std::string& name = bound.RequireString(0).text();
  RequireDefined(rt, input);
  if (!input.Is(Type::kDict)) return GetAttribute(rt, input, name);
  if (auto method = ContainerMethod(rt, input, name)) return *method;
  return Value::Undefined("'dict object' has no attribute '" + name + "'");
}

}  // namespace

std::vector<NamedFilter> SequenceFilters() {
  return {
      {"default", Default},     {"d", Default},
      {"length", LengthFilter}, {"count", LengthFilter},
      {"list", List},           {"first", First},
      {"last", Last},           {"reverse", Reverse},
      {"join", Join},           {"items", Items},
      {"dictsort", DictSort},   {"sort", Sort},
      {"unique", Unique},       {"min", Extreme<false>},
      {"max", Extreme<true>},   {"sum", Sum},
      {"batch", Batch},         {"slice", SliceFilter},
      {"attr", Attr},
  };
}

}  // namespace litecache::tokenizer::jinja
