// Python's binding of call arguments to parameters.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/runtime.h"

namespace litecache::tokenizer::jinja {

// Binds `args` to the named parameters of the function `name`; the first `required` must be given.
// Parameters whose name starts with '/' cannot be given by keyword.
class BoundArgs {
 public:
  BoundArgs(Runtime& rt, std::string_view name, CallArgs& args,
            std::initializer_list<std::string_view> parameters, size_t required = 0);

  bool Has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value Get(size_t i, Value missing) const { return values_[i].value_or(std::move(missing)); }

  // nullopt for a missing argument or None.
  std::optional<int64_t> Int(size_t i) const;
  int64_t Int(size_t i, int64_t missing) const { return Has(i) ? RequireInt(i) : missing; }
  int64_t RequireInt(size_t i) const;
  bool Bool(size_t i, bool missing) const { return Has(i) ? Truthy(*values_[i]) : missing; }
  const MarkedString& RequireString(size_t i) const;

 private:
  [[noreturn]] void FailType(size_t i, const char* wanted) const;
  Runtime& rt_;
  std::string_view name_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace litecache::tokenizer::jinja
