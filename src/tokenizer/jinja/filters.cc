#include <algorithm>
#include <unordered_map>

#include "tokenizer/jinja/builtins.h"

namespace litecache::tokenizer::jinja {

namespace {

const std::unordered_map<std::string_view, FilterFunction>& Filters() {
  static const auto* filters = [] {
    auto* all = new std::unordered_map<std::string_view, FilterFunction>;
    for (const auto& group :
         {TextFilters(), NumberFilters(), SequenceFilters(), SelectionFilters()}) {
      for (const NamedFilter& filter : group) all->emplace(filter.name, filter.function);
    }
    return all;
  }();
  return *filters;
}

// Filters of Jinja that are of no use in a prompt.
constexpr std::string_view kUnsupported[] = {
    "filesizeformat", "groupby", "pprint",  "random",   "striptags",
    "urlencode",      "urlize",  "xmlattr", "wordwrap",
};

}  // namespace

FilterFunction FindFilter(std::string_view name) {
  const auto found = Filters().find(name);
  return found == Filters().end() ? nullptr : found->second;
}

void FailUnknownFilter(std::string_view name, int line) {
  if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported)) {
    throw Unsupported("chat template line {}: the filter '{}' is not supported", line, name);
  }
  throw InvalidArgument("chat template line {}: no filter named '{}'", line, name);
}

Value ApplyFilter(Runtime& rt, std::string_view name, const Value& input, CallArgs& args) {
  rt.Step();
  rt.Touch(input);
  const FilterFunction filter = FindFilter(name);
  if (filter == nullptr) FailUnknownFilter(name, rt.line());
  return filter(rt, input, args);
}

}  // namespace litecache::tokenizer::jinja
