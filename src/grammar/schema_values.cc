#include "grammar/schema_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

constexpr std::array<std::string_view, 20> kAnnotations = {
    "title",         "description",   "default",   "examples",        "example",
    "$schema",       "$id",           "$comment",  "$defs",           "definitions",
    "deprecated",    "readOnly",      "writeOnly", "contentEncoding", "contentMediaType",
    "contentSchema", "discriminator", "strict",    "$anchor",         "$vocabulary"};

const std::vector<std::string> kAllTypes = {"null",   "boolean", "integer", "number",
                                            "string", "array",   "object"};

bool Has(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Whole numbers become integers; the fields of objects are sorted by name.
nlohmann::json Canonical(const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::floor(number) == number && std::abs(number) < 0x1p63) {
      return static_cast<int64_t>(number);
    }
    return number;
  }
  if (value.is_array()) {
    auto list = nlohmann::json::array();
    for (const Json& item : value) list.push_back(Canonical(item));
    return list;
  }
  if (value.is_object()) {
    auto object = nlohmann::json::object();
    for (const auto& [key, item] : value.items()) object[key] = Canonical(item);
    return object;
  }
  return value;
}

}  // namespace

std::vector<std::string> CommonTypes(const std::vector<std::string>& a,
                                     const std::vector<std::string>& b) {
  std::vector<std::string> both;
  for (const std::string& type : a) {
    if (Has(b, type) || (type == "integer" && Has(b, "number"))) both.push_back(type);
  }
  if (Has(a, "number") && !Has(b, "number") && Has(b, "integer") && !Has(both, "integer")) {
    both.push_back("integer");
  }
  return both;
}

std::optional<std::vector<Json>> Constants(const Json& schema) {
  if (schema.contains("const")) return std::vector<Json>{schema["const"]};
  if (schema.contains("enum") && schema["enum"].is_array()) {
    return std::vector<Json>(schema["enum"].begin(), schema["enum"].end());
  }
  return std::nullopt;
}

std::set<std::string> CanonicalTexts(const Json& list) {
  std::set<std::string> texts;
  for (const Json& value : list) texts.insert(CanonicalText(value));
  return texts;
}

std::map<std::string_view, const Json*> ByName(const Json& object) {
  std::map<std::string_view, const Json*> fields;
  for (const auto& [name, value] : object.items()) fields.emplace(name, &value);
  return fields;
}

size_t WeightOf(const Json& value) {
  size_t weight = 1;
  if (value.is_string()) weight += value.get_ref<const std::string&>().size() / 64;
  if (value.is_array()) {
    for (const Json& item : value) weight += WeightOf(item);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) weight += 1 + key.size() / 64 + WeightOf(item);
  }
  return weight;
}

std::string CanonicalText(const Json& value) { return Canonical(value).dump(); }

std::string PathOf(const std::string& path, std::string_view part) {
  constexpr size_t kLongestPath = 400;
  if (path.size() > kLongestPath) return path;
  return fmt::format("{}/{}", path, Shortened(part));
}

std::string Shortened(std::string_view text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return std::string(text);
  return std::string(text.substr(0, tokenizer::PreviousCharacter(text, kLongest + 1))) + "...";
}

std::string Shown(const Json& value) { return Shortened(value.dump()); }

bool IsAnnotation(std::string_view keyword) {
  return keyword.starts_with("x-") ||
         std::find(kAnnotations.begin(), kAnnotations.end(), keyword) != kAnnotations.end();
}

std::string TypeOfValue(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) {
    const double number = value.get<double>();
    return std::floor(number) == number ? "integer" : "number";
  }
  if (value.is_string()) return "string";
  return value.is_array() ? "array" : "object";
}

std::vector<std::string> TypesOf(const Subschema& subschema) {
  const Json& schema = subschema.schema;
  if (!schema.is_object()) return schema == false ? std::vector<std::string>{} : kAllTypes;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    const Json list = type.is_array() ? type : Json::array({type});
    std::vector<std::string> types;
    for (const Json& name : list) {
      if (!name.is_string() || !Has(kAllTypes, name.get<std::string>())) {
        throw InvalidArgument("{}/type: {} is no type of JSON", subschema.path, Shown(type));
      }
      if (!Has(types, name.get<std::string>())) types.push_back(name.get<std::string>());
    }
    return types;
  }
  if (const auto constants = Constants(schema)) {
    std::vector<std::string> types;
    for (const Json& value : *constants) {
      if (const auto type = TypeOfValue(value); !Has(types, type)) types.push_back(type);
    }
    return types;
  }
  static const std::map<std::string, std::string, std::less<>> kAbout = {
      {"properties", "object"},
      {"required", "object"},
      {"additionalProperties", "object"},
      {"minProperties", "object"},
      {"maxProperties", "object"},
      {"items", "array"},
      {"prefixItems", "array"},
      {"minItems", "array"},
      {"maxItems", "array"},
      {"minLength", "string"},
      {"maxLength", "string"},
      {"pattern", "string"},
      {"format", "string"},
      {"minimum", "number"},
      {"maximum", "number"},
      {"exclusiveMinimum", "number"},
      {"exclusiveMaximum", "number"},
      {"multipleOf", "number"}};
  std::vector<std::string> types;
  for (const auto& [keyword, value] : schema.items()) {
    const auto found = kAbout.find(keyword);
    if (found != kAbout.end() && !Has(types, found->second)) types.push_back(found->second);
  }
  return types.empty() ? kAllTypes : types;
}

}  // namespace litecache::grammar
