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

// Each field is read by name and its type and range are checked; Finish() rejects fields that were
// never read, so that nothing a client sends is ignored silently. A null field counts as absent,
// since clients write unset fields that way. All errors are ApiErrors that name the field.
class Fields {
 public:
  // `object` must outlive this. `prefix` precedes the names in messages: "stream_options.".
  explicit Fields(const Json& object, std::string prefix = "");

  // Null when absent.
  const Json* Find(std::string_view name);
  bool Has(std::string_view name) { return Find(name) != nullptr; }

  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int(std::string_view name, int64_t low, int64_t high);
  std::optional<double> Number(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::optional<std::vector<int32_t>> Ids(std::string_view name);
  // An object; the caller reads its fields and calls Finish().
  const Json* Object(std::string_view name);
  const Json* Array(std::string_view name);

  // Accepts fields that change nothing whatever their value: hints, labels.
  void Ignore(std::initializer_list<std::string_view> names);
  // Rejects the field unless it is absent or has one of the `harmless` values.
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
