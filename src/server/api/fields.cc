#include "server/api/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "base/logging.h"

namespace litecache::server {
namespace {

thread_local bool strict_fields = false;

// Logs a field that is ignored: once by name, wherever in a list it stands, and not more of them
// than a log can bear.
void LogIgnored(const std::string& path, std::string_view why) {
  constexpr size_t kMost = 100;
  static std::mutex mutex;
  static std::set<std::string> logged;
  std::string name;
  for (const char c : std::string_view(path).substr(0, 1000)) {
    if (name.ends_with('[') && c >= '0' && c <= '9') continue;
    name += c;
  }
  name = Printable(name);
  const std::lock_guard lock(mutex);
  if (logged.size() >= kMost || !logged.insert(name).second) return;
  LogWarning(
      "server: requests have the field '{}', which is ignored: {} (logged once; --strict-fields "
      "refuses such requests)",
      name, why);
}

// The value if it is an integer; the largest int64 stands for larger ones. 5.0 is one, as in JSON
// schemas: clients in languages with one type of number write that.
std::optional<int64_t> WholeNumber(const Json& value) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  if (value.is_number_float()) {
    constexpr double kExact = 9007199254740992.0;  // 2^53; beyond it digits are missing
    const auto number = value.get<double>();
    const bool whole = std::trunc(number) == number && std::abs(number) <= kExact;
    return whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kLargest}) return kLargest;
  return value.get<int64_t>();
}

}  // namespace

StrictFields::StrictFields(bool strict) : before_(std::exchange(strict_fields, strict)) {}
StrictFields::~StrictFields() { strict_fields = before_; }
bool StrictFields::On() { return strict_fields; }

void IgnoreField(const std::string& path, std::string_view why) {
  if (strict_fields) throw NotSupported(path, "'{}': {}", path, why);
  LogIgnored(path, why);
}

Fields::Fields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {
  if (!object_.is_object()) {
    const std::string name = prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1);
    throw BadRequest(name, "'{}' = {} is not an object", name, Excerpt(object_));
  }
}

const Json* Fields::Find(std::string_view name) {
  known_.emplace(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::Fail(std::string_view name, std::string_view why) const {
  const auto found = object_.find(std::string(name));
  if (found == object_.end()) throw BadRequest(Path(name), "'{}': {}", Path(name), why);
  throw BadRequest(Path(name), "'{}' = {}: {}", Path(name), Excerpt(*found), why);
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail(name, "true or false is expected");
  return value->get<bool>();
}

std::optional<int64_t> Fields::Int(std::string_view name, int64_t low, int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto whole = WholeNumber(*value);
  if (!whole) Fail(name, "an integer is expected");
  const int64_t number = *whole;
  if (number < low || number > high) {
    if (high == std::numeric_limits<int64_t>::max()) {
      Fail(name, fmt::format("an integer of at least {} is expected", low));
    }
    Fail(name, fmt::format("an integer between {} and {} is expected", low, high));
  }
  return number;
}

std::optional<double> Fields::Number(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) Fail(name, "a number is expected");
  return value->get<double>();
}

std::optional<std::string> Fields::String(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(name, "a string is expected");
  return value->get<std::string>();
}

std::optional<std::vector<int32_t>> Fields::Ids(std::string_view name) {
  const Json* value = Array(name);
  if (value == nullptr) return std::nullopt;
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const Json& id : *value) {
    const auto number = WholeNumber(id);
    if (!number || *number < 0 || *number > std::numeric_limits<int32_t>::max()) {
      throw BadRequest(Path(name), "'{}' contains {}, which is not a token id", Path(name),
                       Excerpt(id));
    }
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

const Json* Fields::Object(std::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) Fail(name, "an object is expected");
  return value;
}

const Json* Fields::Array(std::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_array()) Fail(name, "an array is expected");
  return value;
}

void Fields::Ignore(std::initializer_list<std::string_view> names) {
  for (const auto name : names) known_.emplace(name);
}

const Json* Fields::FindOther(std::string_view name, std::initializer_list<Json> values) {
  const Json* value = Find(name);
  const bool other =
      value != nullptr && std::find(values.begin(), values.end(), *value) == values.end();
  return other ? value : nullptr;
}

void Fields::RefuseUnless(std::string_view name, std::initializer_list<Json> harmless,
                          std::string_view why) {
  const Json* value = FindOther(name, harmless);
  if (value == nullptr) return;
  throw NotSupported(Path(name), "'{}' = {}: {}", Path(name), Excerpt(*value), why);
}

void Fields::IgnoreUnless(std::string_view name, std::initializer_list<Json> harmless,
                          std::string_view why) {
  if (FindOther(name, harmless) != nullptr) IgnoreField(Path(name), why);
}

void Fields::Finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name) || value.is_null()) continue;
    if (!strict_fields) {
      LogIgnored(Path(name), "the server does not know this field");
      continue;
    }
    throw ApiError(
        400, "invalid_request_error", "unknown_parameter", Path(name),
        fmt::format("the server does not know the field '{}', and was started with --strict-fields",
                    Path(name)));
  }
}

}  // namespace litecache::server
