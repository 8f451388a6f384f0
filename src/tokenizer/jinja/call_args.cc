#include "tokenizer/jinja/call_args.h"

#include <algorithm>

#include "tokenizer/jinja/value_ops.h"

namespace litecache::tokenizer::jinja {

BoundArgs::BoundArgs(Runtime& rt, std::string_view name, CallArgs& args,
                     std::initializer_list<std::string_view> parameters, size_t required)
    : rt_(rt), name_(name), values_(parameters.size()) {
  if (args.positional.size() > parameters.size()) {
    rt.Fail("{}() takes at most {} arguments ({} given)", name, parameters.size(),
            args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = args.positional[i];
  for (const auto& [keyword, value] : args.keyword) {
    const auto* found = std::find(parameters.begin(), parameters.end(), keyword);
    if (found == parameters.end()) {
      rt.Fail("{}() got an unexpected keyword argument '{}'", name, keyword);
    }
    auto& slot = values_[static_cast<size_t>(found - parameters.begin())];
    if (slot.has_value()) rt.Fail("{}() got multiple values for argument '{}'", name, keyword);
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i].has_value()) {
      rt.Fail("{}() misses its argument '{}'", name, *(parameters.begin() + i));
    }
  }
}

void BoundArgs::FailType(size_t i, const char* wanted) const {
  RequireDefined(rt_, *values_[i]);
  rt_.Fail("argument {} of {}() must be {}, not '{}'", i + 1, name_, wanted, TypeName(*values_[i]));
}

std::optional<int64_t> BoundArgs::Int(size_t i) const {
  if (!Has(i) || values_[i]->IsNone()) return std::nullopt;
  return RequireInt(i);
}

int64_t BoundArgs::RequireInt(size_t i) const {
  if (!values_[i]->IsInteger()) FailType(i, "an integer");
  return values_[i]->int_value();
}

const MarkedString& BoundArgs::RequireString(size_t i) const {
  if (!values_[i]->IsString()) FailType(i, "a string");
  return values_[i]->string();
}

}  // namespace litecache::tokenizer::jinja
