#include "grammar/schema_document.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/work_limit.h"

namespace litecache::grammar {
namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr size_t kMaxChoices = 1000;  // of two anyOf combined

// The value of a schema's $ref.
const std::string& ReferenceOf(const Subschema& subschema) {
  const Json& reference = subschema.schema["$ref"];
  if (!reference.is_string()) {
    throw InvalidArgument("{}/$ref: a text is expected", subschema.path);
  }
  return reference.get_ref<const std::string&>();
}

}  // namespace

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

}  // namespace litecache::grammar
