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

// While an object of this class exists, requests read on its thread must not have fields that the
// server does not know or has no use for (--strict-fields). Otherwise such fields are ignored, and
// logged once by name: clients of other servers send many that change nothing here.
class StrictFields {
 public:
  explicit StrictFields(bool strict);
  ~StrictFields();
  StrictFields(const StrictFields&) = delete;
  StrictFields& operator=(const StrictFields&) = delete;
  static bool On();

 private:
  bool before_;
};

// For a field that asks for something this server cannot do, where the answer is as good without
// it: throws an ApiError with the reason `why` under StrictFields, otherwise logs the field once.
void IgnoreField(const std::string& path, std::string_view why);

// Each field is read by name and its type and range are checked; Finish() handles the fields that
// were never read. A null field counts as absent, since clients write unset fields that way. All
// errors are ApiErrors that name the field.
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
  // The same for what changes nothing that an answer says: IgnoreField() instead of an error.
  void IgnoreUnless(std::string_view name, std::initializer_list<Json> harmless,
                    std::string_view why = "it is not supported");
  // Refuses the fields that nobody asked for, or ignores them: see StrictFields.
  void Finish() const;

  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }
  // Throws: "'name' = value: why".
  [[noreturn]] void Fail(std::string_view name, std::string_view why) const;

 private:
  // The field where it has another value than these; else null.
  const Json* FindOther(std::string_view name, std::initializer_list<Json> values);

  const Json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace litecache::server
