#include "grammar/schema_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"
#include "tokenizer/utf8.h"

namespace litecache::grammar {
namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr size_t kMaxChoices = 1000;  // of two anyOf combined

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

// The value of a schema's $ref.
const std::string& ReferenceOf(const Subschema& subschema) {
  const Json& reference = subschema.schema["$ref"];
  if (!reference.is_string()) {
    throw InvalidArgument("{}/$ref: a text is expected", subschema.path);
  }
  return reference.get_ref<const std::string&>();
}

// Fields by name: ordered objects are searched linearly.
std::map<std::string_view, const Json*> ByName(const Json& object) {
  std::map<std::string_view, const Json*> fields;
  for (const auto& [name, value] : object.items()) fields.emplace(name, &value);
  return fields;
}

// Intersection of two sorted ranges.
template <typename Set>
bool HaveCommon(const Set& a, const Set& b) {
  const Set& fewer = a.size() < b.size() ? a : b;
  const Set& more = a.size() < b.size() ? b : a;
  return std::any_of(fewer.begin(), fewer.end(),
                     [&](const auto& value) { return more.contains(value); });
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

void SchemaDocument::Charge(size_t nodes) const {
  CheckWork(static_cast<int64_t>(nodes));
  if (nodes > work_left_) {
    work_left_ = 0;
    throw InvalidArgument(
        "the schema is too complex: its references and combinations expand too far");
  }
  work_left_ -= nodes;
}

void SchemaDocument::ChargeFor(const Json& value) const { Charge(WeightOf(value)); }

Subschema SchemaDocument::Resolve(const std::string& reference, const std::string& path) const {
  if (reference != "#" && !reference.starts_with("#/")) {
    throw Unsupported("{}/$ref: '{}' is not supported: references begin with #/", path,
                      Shortened(reference));
  }
  std::string pointer;  // resolves the %XX of URIs
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
    const Json::json_pointer place(pointer);
    // Each step searches an object's fields linearly.
    const auto definitions = root_.find("$defs");
    Charge(1 + (root_.size() + (definitions != root_.end() ? definitions->size() : 0)) / 8);
    const Json& found = root_.at(place);
    ChargeFor(found);
    return {found, Shortened(reference)};
  } catch (const Json::exception&) {
    throw InvalidArgument("{}/$ref: there is no '{}' in the schema", path, Shortened(reference));
  }
}

Subschema SchemaDocument::Flatten(const Subschema& subschema) const {
  ChargeFor(subschema.schema);
  return Flatten(subschema, 0);
}

const Subschema& SchemaDocument::FlattenReference(const std::string& reference,
                                                  const std::string& path, int depth) const {
  const auto known = flattened_.find(reference);
  if (known != flattened_.end()) return known->second;
  if (!open_.insert(reference).second) {
    throw InvalidArgument("{}: its references and allOf are circular", path);
  }
  Subschema target = Flatten(Resolve(reference, path), depth);
  while (target.schema.is_object() && target.schema.contains("$ref")) {  // a lone reference
    target = FlattenReference(ReferenceOf(target), target.path, depth + 1);
  }
  open_.erase(reference);
  ChargeFor(target.schema);
  return flattened_.emplace(reference, std::move(target)).first->second;
}

Subschema SchemaDocument::Flatten(const Subschema& subschema, int depth) const {
  if (depth > kMaxSchemaDepth) {
    throw InvalidArgument("{}: its references and allOf nest too deep", subschema.path);
  }
  const Json& schema = subschema.schema;
  if (!schema.is_object()) return subschema;
  if (schema.contains("$ref")) {
    const std::string& reference = ReferenceOf(subschema);
    Json siblings = Json::object();
    for (const auto& [key, value] : schema.items()) {
      if (key != "$ref" && !IsAnnotation(key)) siblings[key] = value;
    }
    if (siblings.empty()) return subschema;
    const Subschema& target = FlattenReference(reference, subschema.path, depth + 1);
    return Flatten({Merge(target, {siblings, subschema.path}), subschema.path}, depth + 1);
  }
  if (!schema.contains("allOf")) return subschema;
  if (!schema["allOf"].is_array()) {
    throw InvalidArgument("{}/allOf: an array is expected", subschema.path);
  }
  // The fields next to allOf, then its parts one after another. A lone reference is kept, so that
  // its target is compiled once.
  Json rest = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (key != "allOf" && !IsAnnotation(key)) rest[key] = value;
  }
  std::optional<Subschema> merged;
  if (!rest.empty()) merged = {std::move(rest), subschema.path};
  const auto followed = [&](const Subschema& part) {
    const bool refers = part.schema.is_object() && part.schema.contains("$ref");
    return refers ? FlattenReference(ReferenceOf(part), part.path, depth + 1) : part;
  };
  for (size_t i = 0; i < schema["allOf"].size(); ++i) {
    const std::string path = fmt::format("{}/allOf/{}", subschema.path, i);
    const Subschema part = Flatten({schema["allOf"][i], path}, depth + 1);
    if (!merged) {
      merged = {part.schema, subschema.path};
      continue;
    }
    merged = {Merge(followed(*merged), followed(part)), subschema.path};
  }
  if (!merged) return {true, subschema.path};
  return Flatten(*merged, depth + 1);
}

Json SchemaDocument::AllOf(const Json& a, const Json& b) const {
  ChargeFor(a);
  ChargeFor(b);
  if (a == b) return a;
  return {{"allOf", Json::array({a, b})}};
}

// Merges the fields of objects that name properties: additionalProperties of one schema restricts
// the properties of the other.
void SchemaDocument::MergeProperties(const Json& a, const Json& b, Json* merged) const {
  const Json empty = Json::object();
  const Json& first = a.contains("properties") ? a["properties"] : empty;
  const Json& second = b.contains("properties") ? b["properties"] : empty;
  const auto rest_of = [](const Json& schema) {
    return schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(true);
  };
  const auto mine = ByName(first), theirs = ByName(second);
  std::vector<std::pair<std::string, Json>> fields;
  for (const auto& [name, schema] : first.items()) {
    const auto found = theirs.find(name);
    fields.emplace_back(name, AllOf(schema, found != theirs.end() ? *found->second : rest_of(b)));
  }
  for (const auto& [name, schema] : second.items()) {
    if (!mine.contains(name)) fields.emplace_back(name, AllOf(schema, rest_of(a)));
  }
  if (a.contains("properties") || b.contains("properties")) {
    Json properties = Json::object();
    auto& made = properties.get_ref<Json::object_t&>();
    made.reserve(fields.size());
    for (auto& [name, schema] : fields) made.emplace_back(std::move(name), std::move(schema));
    (*merged)["properties"] = std::move(properties);
  }
  if (a.contains("additionalProperties") || b.contains("additionalProperties")) {
    (*merged)["additionalProperties"] = AllOf(rest_of(a), rest_of(b));
  }
}

// Merges a field that both schemas have with different values. Returns Json() if nothing satisfies
// both.
Json SchemaDocument::MergeField(const std::string& key, const Json& mine, const Json& other,
                                const Subschema& a, const Subschema& b) const {
  const bool arrays = mine.is_array() && other.is_array();
  const bool numbers = mine.is_number() && other.is_number();
  if (key == "type") {
    const auto types = CommonTypes(TypesOf(a), TypesOf(b));
    return types.empty() ? Json() : Json(types);
  }
  if (key == "required" && arrays) {
    Json both = mine;
    std::set<std::string> known;
    for (const Json& name : mine) known.insert(name.dump());
    for (const Json& name : other) {
      if (known.insert(name.dump()).second) both.push_back(name);
    }
    return both;
  }
  if ((key == "exclusiveMinimum" || key.starts_with("min")) && numbers)
    return std::max(mine, other);
  if ((key == "exclusiveMaximum" || key.starts_with("max")) && numbers)
    return std::min(mine, other);
  if (key == "const") return CanonicalText(mine) == CanonicalText(other) ? mine : Json();
  if (key == "enum" && arrays) {
    Json both = Json::array();
    const auto others = CanonicalTexts(other);
    for (const Json& entry : mine) {
      if (others.contains(CanonicalText(entry))) both.push_back(entry);
    }
    return both.empty() ? Json() : both;
  }
  if (key == "items") return AllOf(mine, other);
  if (key == "allOf" && arrays) {
    Json both = mine;
    for (const Json& part : other) both.push_back(part);
    return both;
  }
  if (key == "anyOf" && arrays) {
    if (mine.size() * other.size() > kMaxChoices) {
      throw Unsupported("{}: anyOf and the one of {} have too many combinations", b.path, a.path);
    }
    Json both = Json::array();
    for (const Json& x : mine) {
      for (const Json& y : other) both.push_back(AllOf(x, y));
    }
    return both;
  }
  throw Unsupported("{}: '{}' = {} and {} of {} cannot be combined", b.path, Shortened(key),
                    Shown(other), Shown(mine), a.path);
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
    ChargeFor(s->schema);
  }
  Json merged = a.schema;
  for (const auto& [key, value] : b.schema.items()) {
    if (IsAnnotation(key)) continue;
    if (key == "properties" || key == "additionalProperties") continue;
    Charge(1 + merged.size() / 8);
    const auto found = merged.find(key);
    if (found == merged.end()) {
      merged[key] = value;
    } else if (*found != value) {
      Json both = MergeField(key, *found, value, a, b);
      if (both.is_null()) return false;
      *found = std::move(both);
    }
  }
  MergeProperties(a.schema, b.schema, &merged);
  // Of a constant in one schema and an enumeration in the other, the constant is kept.
  if (merged.contains("const") && merged.contains("enum")) {
    if (!CanonicalTexts(merged["enum"]).contains(CanonicalText(merged["const"]))) return false;
    merged.erase("enum");
  }
  return merged;
}

Subschema SchemaDocument::Plain(const Subschema& subschema) const {
  Subschema plain = Flatten(subschema);
  if (!plain.schema.is_object() || !plain.schema.contains("$ref")) return plain;
  return FlattenReference(ReferenceOf(plain), plain.path, 0);
}

struct SchemaDocument::Traits {
  bool nothing = false;                            // no value satisfies the schema
  std::optional<std::set<std::string>> constants;  // texts of the only allowed values
  std::optional<std::vector<std::string>> types;   // as named by the schema
  std::map<std::string, Traits> required;          // by property, if only objects are allowed
};

SchemaDocument::Traits SchemaDocument::TraitsOf(const Subschema& subschema, int depth) const {
  constexpr int kDeepest = 3;
  const Subschema plain = Plain(subschema);
  const Json& schema = plain.schema;
  Traits traits;
  traits.nothing = schema == false;
  if (!schema.is_object()) return traits;
  if (const auto constants = Constants(schema)) traits.constants = CanonicalTexts(*constants);
  // TypesOf() guesses if there is no "type": such a schema allows more.
  if (!schema.contains("type") && !traits.constants) return traits;
  traits.types = TypesOf(plain);
  if (depth >= kDeepest || *traits.types != std::vector<std::string>{"object"}) return traits;
  if (!schema.contains("required") || !schema.contains("properties")) return traits;
  if (!schema["required"].is_array() || !schema["properties"].is_object()) return traits;
  const auto properties = ByName(schema["properties"]);
  for (const Json& name : schema["required"]) {
    const auto found =
        name.is_string() ? properties.find(name.get_ref<const std::string&>()) : properties.end();
    if (found == properties.end()) continue;
    traits.required.emplace(name.get<std::string>(),
                            TraitsOf({*found->second, plain.path}, depth + 1));
  }
  return traits;
}

bool SchemaDocument::Disjoint(const Traits& a, const Traits& b) {
  if (a.nothing || b.nothing) return true;
  if (a.constants && b.constants) return !HaveCommon(*a.constants, *b.constants);
  if (!a.types || !b.types) return false;
  const auto common = CommonTypes(*a.types, *b.types);
  if (common.empty()) return true;
  if (common != std::vector<std::string>{"object"}) return false;
  return std::any_of(a.required.begin(), a.required.end(), [&](const auto& field) {
    const auto other = b.required.find(field.first);
    return other != b.required.end() && Disjoint(field.second, other->second);
  });
}

std::optional<std::pair<size_t, size_t>> SchemaDocument::FindOverlap(
    const std::vector<Subschema>& schemas) const {
  std::vector<Traits> traits;
  traits.reserve(schemas.size());
  for (const Subschema& schema : schemas) traits.push_back(TraitsOf(schema, 0));
  for (size_t i = 0; i < traits.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      Charge(4);
      if (!Disjoint(traits[i], traits[j])) return std::pair(j, i);
    }
  }
  return std::nullopt;
}

}  // namespace litecache::grammar
