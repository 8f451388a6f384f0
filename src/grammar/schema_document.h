// A JSON schema document: resolves references and combines several schemas into one.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/schema_values.h"

namespace litecache::grammar {

// Work limit for the documents of one grammar: small ones can expand to a lot when references and
// combinations multiply. Counted in visited JSON nodes; this many take about a second.
inline constexpr size_t kSchemaWork = 4'000'000;

class SchemaDocument {
 public:
  // `root` must outlive this. Work is subtracted from `work_left`; InvalidArgument is thrown when
  // too little is left.
  SchemaDocument(const Json& root, size_t* work_left) : root_(root), work_left_(*work_left) {}

  // Charges for `nodes` of JSON about to be visited, or equivalent work.
  void Charge(size_t nodes) const;
  // Charges for a value about to be copied, compared or written.
  void ChargeFor(const Json& value) const;

  // The target of "#/...". Throws InvalidArgument if there is none, and Unsupported for references
  // outside the document.
  Subschema Resolve(const std::string& reference, const std::string& path) const;

  // One schema for the values that satisfy both. Objects are merged field by field; the schemas of
  // a property that both have become an allOf. Throws Unsupported if two fields cannot be combined.
  Json Merge(const Subschema& a, const Subschema& b) const;

  // The schema with $ref next to other fields and allOf merged; a lone $ref is kept.
  Subschema Flatten(const Subschema& subschema) const;
  // The same, but also follows lone references.
  Subschema Plain(const Subschema& subschema) const;

  // Two of the schemas that may have a value in common, by their indices; none if types, constants,
  // or those of a property that both require tell every two of them apart.
  std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<Subschema>& schemas) const;

 private:
  // Properties of a schema by which its values may be told apart from another's.
  struct Traits;

  Subschema Flatten(const Subschema& subschema, int depth) const;
  // The target of a reference, flattened. Computed once for each reference.
  const Subschema& FlattenReference(const std::string& reference, const std::string& path,
                                    int depth) const;
  Json MergeField(const std::string& key, const Json& mine, const Json& other, const Subschema& a,
                  const Subschema& b) const;
  void MergeProperties(const Json& a, const Json& b, Json* merged) const;
  Json AllOf(const Json& a, const Json& b) const;
  Traits TraitsOf(const Subschema& subschema, int depth) const;
  static bool Disjoint(const Traits& a, const Traits& b);
  const Json& root_;
  size_t& work_left_;
  mutable std::map<std::string, Subschema> flattened_;
  mutable std::set<std::string> open_;  // references being flattened
};

}  // namespace litecache::grammar
