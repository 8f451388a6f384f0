// Schemas and their values as JSON: types, constants, equality, and how errors show them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::grammar {

using Json = nlohmann::ordered_json;

// A schema, and its position in the document for errors: "#/properties/a".
struct Subschema {
  Json schema;
  std::string path;
};

// Fields without effect on validity: title, description, default, examples, ...
bool IsAnnotation(std::string_view keyword);
// The types that a schema allows: those in "type", else those implied by const, enum or the other
// fields, else all.
std::vector<std::string> TypesOf(const Subschema& subschema);
// "integer" for whole numbers.
std::string TypeOfValue(const Json& value);
// Equal values have equal texts: 1 and 1.0, and objects with their fields in any order.
std::string CanonicalText(const Json& value);
// The path of a part, for errors. Long names and long paths are cut.
std::string PathOf(const std::string& path, std::string_view part);
// For errors: at most 80 bytes of a text, cut between characters; or of a value as JSON.
std::string Shortened(std::string_view text);
std::string Shown(const Json& value);

// The types that both allow: of "integer" and "number", "integer".
std::vector<std::string> CommonTypes(const std::vector<std::string>& a,
                                     const std::vector<std::string>& b);
// The values of "const" or "enum"; none if the schema has neither.
std::optional<std::vector<Json>> Constants(const Json& schema);
// The CanonicalText of every value of a list.
std::set<std::string> CanonicalTexts(const Json& list);
// Fields by name: ordered objects are searched linearly. `object` must outlive the result.
std::map<std::string_view, const Json*> ByName(const Json& object);
// About how many values it has, in units of work (SchemaDocument::Charge).
size_t WeightOf(const Json& value);

}  // namespace litecache::grammar
