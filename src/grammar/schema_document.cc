#include "grammar/schema_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace litecache::grammar {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxChoices = 1000;  // of two anyOf together

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

// 1 and 1.0 are equal, and the order of an object's fields means nothing.
bool Equal(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::optional<std::vector<Json>> Constants(const Json& schema) {
  if (schema.contains("const")) return std::vector<Json>{schema["const"]};
  if (schema.contains("enum") && schema["enum"].is_array()) {
    return std::vector<Json>(schema["enum"].begin(), schema["enum"].end());
  }
  return std::nullopt;
}

bool Contains(const std::vector<Json>& list, const Json& value) {
  return std::any_of(list.begin(), list.end(), [&](const Json& v) { return Equal(v, value); });
}

Json AllOf(const Json& a, const Json& b) {
  if (a == b) return a;
  return {{"allOf", Json::array({a, b})}};
}

// The fields of objects that name properties, merged together: what one forbids or restricts by
// additionalProperties concerns the other's.
void MergeProperties(const Json& a, const Json& b, Json* merged) {
  const Json empty = Json::object();
  const Json& first = a.contains("properties") ? a["properties"] : empty;
  const Json& second = b.contains("properties") ? b["properties"] : empty;
  const auto rest_of = [](const Json& schema) {
    return schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(true);
  };
  Json properties = Json::object();
  for (const auto& [name, schema] : first.items()) {
    properties[name] = AllOf(schema, second.contains(name) ? second[name] : rest_of(b));
  }
  for (const auto& [name, schema] : second.items()) {
    if (!first.contains(name)) properties[name] = AllOf(schema, rest_of(a));
  }
  if (a.contains("properties") || b.contains("properties")) (*merged)["properties"] = properties;
  if (a.contains("additionalProperties") || b.contains("additionalProperties")) {
    (*merged)["additionalProperties"] = AllOf(rest_of(a), rest_of(b));
  }
}

}  // namespace

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
        throw InvalidArgument("{}/type: {} is no type of JSON", subschema.path, type.dump());
      }
      types.push_back(name.get<std::string>());
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

Subschema SchemaDocument::Resolve(const std::string& reference, const std::string& path) const {
  if (reference == "#") return {root_, "#"};
  if (!reference.starts_with("#/")) {
    throw Unsupported("{}/$ref: '{}' is not supported: references begin with #/", path, reference);
  }
  std::string pointer;  // %XX of URIs
  for (size_t i = 1; i < reference.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < reference.size()
                 ? static_cast<int>(std::string_view("0123456789abcdef")
                                        .find(static_cast<char>(reference[at] | 0x20)))
                 : -1;
    };
    if (reference[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      pointer += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      pointer += reference[i];
    }
  }
  try {
    return {root_.at(Json::json_pointer(pointer)), reference};
  } catch (const Json::exception&) {
    throw InvalidArgument("{}/$ref: there is no '{}' in the schema", path, reference);
  }
}

Subschema SchemaDocument::Flatten(const Subschema& subschema) const {
  return Flatten(subschema, 0);
}

Subschema SchemaDocument::Flatten(const Subschema& subschema, int depth) const {
  if (depth > kMaxDepth) {
    throw InvalidArgument("{}: its references and allOf go around in a circle", subschema.path);
  }
  const Json& schema = subschema.schema;
  if (!schema.is_object()) return subschema;
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) {
      throw InvalidArgument("{}/$ref: a text is expected", subschema.path);
    }
    Json siblings = Json::object();
    for (const auto& [key, value] : schema.items()) {
      if (key != "$ref" && !IsAnnotation(key)) siblings[key] = value;
    }
    if (siblings.empty()) return subschema;
    const Subschema target =
        Flatten(Resolve(schema["$ref"].get<std::string>(), subschema.path), depth + 1);
    return Flatten({Merge(target, {siblings, subschema.path}), subschema.path}, depth + 1);
  }
  if (!schema.contains("allOf")) return subschema;
  if (!schema["allOf"].is_array()) {
    throw InvalidArgument("{}/allOf: an array is expected", subschema.path);
  }
  Subschema merged = {schema, subschema.path};
  merged.schema.erase("allOf");
  for (size_t i = 0; i < schema["allOf"].size(); ++i) {
    Subschema part =
        Flatten({schema["allOf"][i], fmt::format("{}/allOf/{}", subschema.path, i)}, depth + 1);
    // A lone reference need not be merged with nothing.
    Json rest = Json::object();
    if (merged.schema.is_object()) {
      for (const auto& [key, value] : merged.schema.items()) {
        if (!IsAnnotation(key)) rest[key] = value;
      }
      if (rest.empty()) {
        merged.schema = part.schema;
        continue;
      }
    }
    while (part.schema.is_object() && part.schema.contains("$ref")) {
      if (++depth > kMaxDepth) break;
      part = Flatten(Resolve(part.schema["$ref"].get<std::string>(), part.path), depth + 1);
    }
    while (merged.schema.is_object() && merged.schema.contains("$ref")) {
      if (++depth > kMaxDepth) break;
      merged = Flatten(Resolve(merged.schema["$ref"].get<std::string>(), part.path), depth + 1);
    }
    merged.schema = Merge(merged, part);
    merged.path = subschema.path;
  }
  return Flatten(merged, depth + 1);
}

Json SchemaDocument::Merge(const Subschema& a, const Subschema& b) const {
  const auto empty = [](const Json& schema) {
    return schema == true || (schema.is_object() && schema.empty());
  };
  if (a.schema == false || b.schema == false) return false;
  if (empty(a.schema)) return b.schema;
  if (empty(b.schema)) return a.schema;
  for (const Subschema* s : {&a, &b}) {
    if (!s->schema.is_object()) {
      throw InvalidArgument("{}: a schema is an object, true or false", s->path);
    }
  }
  Json merged = a.schema;
  for (const auto& [key, value] : b.schema.items()) {
    if (IsAnnotation(key)) continue;
    if (key == "properties" || key == "additionalProperties") continue;
    if (!merged.contains(key)) {
      merged[key] = value;
      continue;
    }
    Json& mine = merged[key];
    if (mine == value) continue;
    if (key == "type") {
      const auto types = CommonTypes(TypesOf(a), TypesOf(b));
      if (types.empty()) return false;
      mine = types;
    } else if (key == "required" && mine.is_array() && value.is_array()) {
      for (const Json& name : value) {
        if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
      }
    } else if ((key == "minimum" || key == "exclusiveMinimum" || key.starts_with("min")) &&
               mine.is_number() && value.is_number()) {
      if (value > mine) mine = value;
    } else if ((key == "maximum" || key == "exclusiveMaximum" || key.starts_with("max")) &&
               mine.is_number() && value.is_number()) {
      if (value < mine) mine = value;
    } else if (key == "const") {
      return false;
    } else if (key == "enum" && mine.is_array() && value.is_array()) {
      Json both = Json::array();
      for (const Json& entry : mine) {
        if (Contains({value.begin(), value.end()}, entry)) both.push_back(entry);
      }
      if (both.empty()) return false;
      mine = both;
    } else if (key == "items") {
      mine = AllOf(mine, value);
    } else if (key == "allOf" && mine.is_array() && value.is_array()) {
      for (const Json& part : value) mine.push_back(part);
    } else if (key == "anyOf" && mine.is_array() && value.is_array()) {
      if (mine.size() * value.size() > kMaxChoices) {
        throw Unsupported("{}: anyOf and the one of {} have too many combinations", b.path, a.path);
      }
      Json both = Json::array();
      for (const Json& x : mine) {
        for (const Json& y : value) both.push_back(AllOf(x, y));
      }
      mine = both;
    } else {
      throw Unsupported("{}: '{}' = {} and {} of {} cannot be combined", b.path, key, value.dump(),
                        mine.dump(), a.path);
    }
  }
  MergeProperties(a.schema, b.schema, &merged);
  // Of constants on one side and an enumeration on the other, the constant stays.
  if (merged.contains("const") && merged.contains("enum")) {
    const std::vector<Json> list(merged["enum"].begin(), merged["enum"].end());
    if (!Contains(list, merged["const"])) return false;
    merged.erase("enum");
  }
  return merged;
}

Subschema SchemaDocument::Plain(const Subschema& subschema) const {
  Subschema plain = Flatten(subschema);
  for (int i = 0; i < kMaxDepth; ++i) {
    if (!plain.schema.is_object() || !plain.schema.contains("$ref")) break;
    plain = Flatten(Resolve(plain.schema["$ref"].get<std::string>(), plain.path));
  }
  return plain;
}

bool SchemaDocument::Disjoint(const Subschema& first, const Subschema& second, int depth) const {
  constexpr int kDeepest = 3;
  const Subschema a = Plain(first), b = Plain(second);
  if (a.schema == false || b.schema == false) return true;
  if (!a.schema.is_object() || !b.schema.is_object()) return false;
  const auto own = Constants(a.schema), others = Constants(b.schema);
  if (own && others) {
    return std::none_of(own->begin(), own->end(),
                        [&](const Json& value) { return Contains(*others, value); });
  }
  // TypesOf() guesses where there is no "type": such a schema allows more.
  const auto typed = [](const Json& schema) {
    return schema.contains("type") || schema.contains("const") || schema.contains("enum");
  };
  if (!typed(a.schema) || !typed(b.schema)) return false;
  const auto common = CommonTypes(TypesOf(a), TypesOf(b));
  if (common.empty()) return true;
  if (common != std::vector<std::string>{"object"} || depth >= kDeepest) return false;
  for (const Subschema* s : {&a, &b}) {
    if (!s->schema.contains("required") || !s->schema.contains("properties")) return false;
    if (!s->schema["required"].is_array() || !s->schema["properties"].is_object()) return false;
  }
  for (const Json& name : a.schema["required"]) {
    if (!name.is_string()) continue;
    const auto& required = b.schema["required"];
    if (std::find(required.begin(), required.end(), name) == required.end()) continue;
    const auto key = name.get<std::string>();
    const auto& mine = a.schema["properties"];
    const auto& theirs = b.schema["properties"];
    if (!mine.contains(key) || !theirs.contains(key)) continue;
    if (Disjoint({mine[key], a.path}, {theirs[key], b.path}, depth + 1)) return true;
  }
  return false;
}

}  // namespace litecache::grammar
