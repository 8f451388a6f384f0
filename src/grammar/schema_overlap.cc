// Whether values can tell which of several schemas they satisfy.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "grammar/schema_document.h"

namespace litecache::grammar {
namespace {

// Intersection of two sorted ranges.
template <typename Set>
bool HaveCommon(const Set& a, const Set& b) {
  const Set& fewer = a.size() < b.size() ? a : b;
  const Set& more = a.size() < b.size() ? b : a;
  return std::any_of(fewer.begin(), fewer.end(),
                     [&](const auto& value) { return more.contains(value); });
}

}  // namespace

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
