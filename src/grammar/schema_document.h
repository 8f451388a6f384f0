// A JSON schema: what its references mean, and several schemas as one.
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

// A schema, and where in the document it stands, for errors: "#/properties/a".
struct Subschema {
  Json schema;
  std::string path;
};

// What may be done with the documents of one grammar: they may be small and mean much, when
// references and combinations multiply. In nodes of JSON gone through; this many take about a
// second.
inline constexpr size_t kSchemaWork = 4'000'000;

class SchemaDocument {
 public:
  // `root` must outlive this. What is done is taken off `work_left`; what is not left is refused
  // with InvalidArgument.
  SchemaDocument(const Json& root, size_t* work_left) : root_(root), work_left_(*work_left) {}

  // `nodes` of JSON, or as much work, are about to be gone through.
  void Charge(size_t nodes) const;
  // A value is about to be copied, compared or written.
  void ChargeFor(const Json& value) const;

  // What "#/..." names. Throws InvalidArgument for what is not there, Unsupported for references
  // beyond the document.
  Subschema Resolve(const std::string& reference, const std::string& path) const;

  // One schema for what satisfies both. Objects are merged field by field, the schemas of a
  // property that both have become an allOf. Throws Unsupported where two fields have no common
  // form.
  Json Merge(const Subschema& a, const Subschema& b) const;

  // The schema with $ref beside other fields and allOf merged away; $ref alone stays.
  Subschema Flatten(const Subschema& subschema) const;

  // Two of the schemas that may have a value in common, by their places in the list; none where
  // their types, constants, or those of a property that both require, tell all of them apart.
  std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<Subschema>& schemas) const;

 private:
  // What a schema says that another one's values may not satisfy.
  struct Traits;

  Subschema Flatten(const Subschema& subschema, int depth) const;
  // What a reference means, flattened. Each is worked out once.
  const Subschema& FlattenReference(const std::string& reference, const std::string& path,
                                    int depth) const;
  Json MergeField(const std::string& key, const Json& mine, const Json& other, const Subschema& a,
                  const Subschema& b) const;
  void MergeProperties(const Json& a, const Json& b, Json* merged) const;
  Json AllOf(const Json& a, const Json& b) const;
  Traits TraitsOf(const Subschema& subschema, int depth) const;
  static bool Disjoint(const Traits& a, const Traits& b);
  // References followed, too.
  Subschema Plain(const Subschema& subschema) const;

  const Json& root_;
  size_t& work_left_;
  mutable std::map<std::string, Subschema> flattened_;
  mutable std::set<std::string> open_;  // references that are being flattened
};

// Fields that say nothing about the value: title, description, default, examples, ...
bool IsAnnotation(std::string_view keyword);
// The types a schema allows: what "type" says, else what const, enum or the other fields are about;
// all of them where nothing says.
std::vector<std::string> TypesOf(const Subschema& subschema);
// "integer" for whole numbers.
std::string TypeOfValue(const Json& value);
// Equal values have equal texts: 1 and 1.0, and objects whatever the order of their fields.
std::string CanonicalText(const Json& value);
// The place of a part, for errors. Long names and long paths are cut.
std::string PathOf(const std::string& path, std::string_view part);
// For errors: a text of at most 80 bytes, cut between characters; a value, as JSON.
std::string Shortened(std::string_view text);
std::string Shown(const Json& value);

}  // namespace litecache::grammar
