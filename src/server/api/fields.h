// The fields of a request's JSON object.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/error.h"
#include "server/api/json.h"

namespace litecache::server {

// Every field is asked for by name, its type and range checked; Finish() refuses those nobody asked
// for, so that nothing a client sends is dropped silently. A null field counts as absent, as
// clients write unset ones. All errors are ApiErrors that name the field.
class Fields {
 public:
  // `object` must outlive this. `prefix` stands before the names in messages: "stream_options.".
  explicit Fields(const Json& object, std::string prefix = "");

  // Null when absent.
  const Json* Find(std::string_view name);
  bool Has(std::string_view name) { return Find(name) != nullptr; }

  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int(std::string_view name, int64_t low, int64_t high);
  std::optional<double> Number(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::optional<std::vector<int32_t>> Ids(std::string_view name);
  // An object, whose fields are the caller's to read and Finish().
  const Json* Object(std::string_view name);
  const Json* Array(std::string_view name);

  // Fields that change nothing whatever their value: hints, labels.
  void Ignore(std::initializer_list<std::string_view> names);
  // Refuses the field where it has another value than one of those that ask for nothing.
  void RefuseUnless(std::string_view name, std::initializer_list<Json> harmless,
                    std::string_view why = "it is not supported");
  void Refuse(std::string_view name, std::string_view why = "it is not supported") {
    RefuseUnless(name, {}, why);
  }
  void Finish() const;

  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }
  // Throws: "'name' = value: why".
  [[noreturn]] void Fail(std::string_view name, std::string_view why) const;

 private:
  const Json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace litecache::server
