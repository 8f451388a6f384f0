#include "io/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/file.h"

namespace litecache::io {

using nlohmann::json;

namespace {

// Line and column (from 1) of byte `offset`.
std::pair<int64_t, int64_t> Locate(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = start == std::string_view::npos ? before.size() : before.size() - start - 1;
  return {line + 1, static_cast<int64_t>(column) + 1};
}

std::string Range(double low, double high) { return fmt::format("{:.6g} to {:.6g}", low, high); }

}  // namespace

json ParseJson(std::string_view text, const std::string& name, DuplicateKeys duplicates,
               int64_t first_line) {
  JsonLimits limits;
  try {
    return ParseLimitedJson<json>(text, &limits, duplicates);
  } catch (const JsonError& error) {
    if (error.offset() == JsonError::kNowhere) throw FileError("{}: {}", name, error.what());
    const auto [line, column] = Locate(text, error.offset());
    throw FileError("{}:{}:{}: not valid JSON: {}", name, first_line + line - 1, column,
                    error.what());
  }
}

json ReadJsonFile(const std::filesystem::path& path) {
  return ParseJson(ReadTextFile(path), path.string());
}

std::string Excerpt(const json& value) {
  // Containers are summarized, never dumped: dump() recurses, and a hostile file nests deeply.
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  if (value.is_array()) {
    std::string text = "[";
    for (size_t i = 0; i < std::min<size_t>(value.size(), 4); ++i) {
      if (i > 0) text += ", ";
      text += value[i].is_structured() ? "..." : Excerpt(value[i]);
    }
    return text + (value.size() > 4 ? ", ...]" : "]");
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

JsonFields::JsonFields(const json& object, std::string name, std::string prefix)
    : object_(&object), name_(std::move(name)), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    if (prefix_.empty()) throw FileError("{}: must hold a JSON object", name_);
    throw FileError("{}: field '{}' = {}: must be an object", name_,
                    prefix_.substr(0, prefix_.size() - 1), Excerpt(object));
  }
}

std::string JsonFields::Path(std::string_view key) const {
  return fmt::format("{}{}", prefix_, key);
}

bool JsonFields::IsNull(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && found->is_null();
}

const json* JsonFields::Find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(std::string_view key, const std::string& reason) const {
  const json* value = Find(key);
  throw FileError("{}: field '{}' = {}: {}", name_, Path(key),
                  value == nullptr ? "null" : Excerpt(*value), reason);
}

void JsonFields::Refuse(std::string_view key, const std::string& reason) const {
  const json* value = Find(key);
  throw Unsupported("{}: field '{}' = {} is not supported: {}", name_, Path(key),
                    value == nullptr ? "null" : Excerpt(*value), reason);
}

void JsonFields::Missing(std::string_view key, const std::string& expected) const {
  throw FileError("{}: field '{}' is missing; expected {}", name_, Path(key), expected);
}

std::optional<int64_t> JsonFields::Int(std::string_view key, int64_t low, int64_t high) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = fmt::format("must be an integer from {} to {}", low, high);
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto wide = value->get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) Fail(key, expected);
    number = static_cast<int64_t>(wide);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    // Some exporters write 4096.0.
    const double wide = value->get<double>();
    if (!(std::abs(wide) < 0x1p53) || wide != std::floor(wide)) Fail(key, expected);
    number = static_cast<int64_t>(wide);
  } else {
    Fail(key, expected);
  }
  if (number < low || number > high) Fail(key, expected);
  return number;
}

std::optional<double> JsonFields::Number(std::string_view key, double low, double high) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = "must be a number from " + Range(low, high);
  if (!value->is_number()) Fail(key, expected);
  const auto number = value->get<double>();
  if (!(number >= low && number <= high)) Fail(key, expected);
  return number;
}

std::optional<bool> JsonFields::Bool(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail(key, "must be true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(key, "must be a string");
  return value->get<std::string>();
}

std::vector<int64_t> JsonFields::IntOrInts(std::string_view key, int64_t low, int64_t high) const {
  const json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {*Int(key, low, high)};
  std::vector<int64_t> numbers;
  for (const json& item : *value) {
    const bool ok =
        item.is_number_integer() &&
        (!item.is_number_unsigned() || item.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) &&
        item.get<int64_t>() >= low && item.get<int64_t>() <= high;
    if (!ok) Fail(key, fmt::format("must be integers from {} to {}", low, high));
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

std::optional<std::vector<std::string>> JsonFields::Strings(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) Fail(key, "must be a list of strings");
  std::vector<std::string> strings;
  for (const json& item : *value) {
    if (!item.is_string()) Fail(key, "must be a list of strings");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::optional<JsonFields> JsonFields::Object(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return JsonFields(*value, name_, Path(key) + ".");
}

int64_t JsonFields::RequiredInt(std::string_view key, int64_t low, int64_t high) const {
  const auto value = Int(key, low, high);
  if (!value) Missing(key, fmt::format("an integer from {} to {}", low, high));
  return *value;
}

double JsonFields::RequiredNumber(std::string_view key, double low, double high) const {
  const auto value = Number(key, low, high);
  if (!value) Missing(key, "a number from " + Range(low, high));
  return *value;
}

std::string JsonFields::RequiredString(std::string_view key) const {
  auto value = String(key);
  if (!value) Missing(key, "a string");
  return *std::move(value);
}

std::vector<std::string> JsonFields::RequiredStrings(std::string_view key) const {
  auto value = Strings(key);
  if (!value) Missing(key, "a list of strings");
  return *std::move(value);
}

}  // namespace litecache::io
