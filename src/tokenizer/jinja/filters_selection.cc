// map, select, reject, selectattr, rejectattr: lazy like Jinja's generators, so that an error in an
// item that is never read is never raised.
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call_args.h"
#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

namespace {

using ItemFunction = std::function<Value(Runtime&, const Value&)>;
using ItemTest = std::function<bool(Runtime&, const Value&)>;

// An iterator over `input`, which need not be iterable if it is false.
std::shared_ptr<Iterator> Open(Runtime& rt, const Value& input) {
  return Truthy(input) ? Iterate(rt, input) : IterateVector({}, "generator");
}

ItemFunction PrepareMap(Runtime& rt, CallArgs args) {
  if (args.positional.empty()) {
    std::optional<Value> attribute, missing;
    for (const auto& [name, value] : args.keyword) {
      if (name == "attribute") {
        attribute = value;
      } else if (name == "default") {
        if (!value.IsNone()) missing = value;
      } else if (attribute.has_value()) {
        rt.Fail("map got an unexpected keyword argument '{}'", name);
      }
    }
    if (!attribute.has_value()) rt.Fail("map requires a filter argument");
    return [attribute, missing](Runtime& rt, const Value& item) {
      return GetPath(rt, item, *attribute, missing);
    };
  }
  if (!args.positional[0].IsString()) rt.Fail("map takes the name of a filter");
  const std::string name = args.positional[0].text();
  args.positional.erase(args.positional.begin());
  return [name, args](Runtime& rt, const Value& item) {
    CallArgs copy = args;
    return ApplyFilter(rt, name, item, copy);
  };
}

Value MapFilter(Runtime& rt, const Value& input, CallArgs& args) {
  auto source = std::make_shared<std::shared_ptr<Iterator>>();
  auto function = std::make_shared<ItemFunction>();
  return rt.MakeIterator(MakeGenerator([=, args = args](Runtime& rt, Value* item) {
                           if (*source == nullptr) {
                             *source = Open(rt, input);
                             if (Truthy(input)) *function = PrepareMap(rt, args);
                           }
                           Value next;
                           if (!(*source)->Next(rt, &next)) return false;
                           *item = (*function)(rt, next);
                           return true;
                         }),
                         input);
}

ItemTest PrepareTest(Runtime& rt, CallArgs args, bool by_attribute) {
  std::optional<Value> attribute;
  if (by_attribute) {
    if (args.positional.empty()) rt.Fail("missing parameter for attribute name");
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  std::optional<std::string> name;
  if (!args.positional.empty()) {
    if (!args.positional[0].IsString()) rt.Fail("select and reject take the name of a test");
    name = args.positional[0].text();
    args.positional.erase(args.positional.begin());
  }
  return [attribute, name, args](Runtime& rt, const Value& item) {
    const Value value = attribute.has_value() ? GetPath(rt, item, *attribute) : item;
    if (!name.has_value()) return Truthy(value);
    CallArgs copy = args;
    return ApplyTest(rt, *name, value, copy);
  };
}

template <bool Keep, bool ByAttribute>
Value Selection(Runtime& rt, const Value& input, CallArgs& args) {
  auto source = std::make_shared<std::shared_ptr<Iterator>>();
  auto test = std::make_shared<ItemTest>();
  return rt.MakeIterator(MakeGenerator([=, args = args](Runtime& rt, Value* item) {
                           if (*source == nullptr) {
                             *source = Open(rt, input);
                             if (Truthy(input)) *test = PrepareTest(rt, args, ByAttribute);
                           }
                           while ((*source)->Next(rt, item)) {
                             if ((*test)(rt, *item) == Keep) return true;
                           }
                           return false;
                         }),
                         input);
}

}  // namespace

std::vector<NamedFilter> SelectionFilters() {
  return {
      {"map", MapFilter},
      {"select", Selection<true, false>},
      {"reject", Selection<false, false>},
      {"selectattr", Selection<true, true>},
      {"rejectattr", Selection<false, true>},
  };
}

}  // namespace litecache::tokenizer::jinja
