// A JSON schema: what its references mean, and several schemas as one.
#pragma once

#include <nlohmann/json.hpp>
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

class SchemaDocument {
 public:
  // `root` must outlive this.
  explicit SchemaDocument(const Json& root) : root_(root) {}

  // What "#/..." names. Throws InvalidArgument for what is not there, Unsupported for references
  // beyond the document.
  Subschema Resolve(const std::string& reference, const std::string& path) const;

  // One schema for what satisfies both. Objects are merged field by field, the schemas of a
  // property that both have become an allOf. Throws Unsupported where two fields have no common
  // form.
  Json Merge(const Subschema& a, const Subschema& b) const;

  // The schema with $ref beside other fields and allOf merged away; $ref alone stays.
  Subschema Flatten(const Subschema& subschema) const;

  // True where no value can satisfy both: their types, constants, or those of a property that both
  // require, have nothing in common.
  bool Disjoint(const Subschema& a, const Subschema& b) const { return Disjoint(a, b, 0); }

 private:
  Subschema Flatten(const Subschema& subschema, int depth) const;
  bool Disjoint(const Subschema& a, const Subschema& b, int depth) const;
  // References followed, too.
  Subschema Plain(const Subschema& subschema) const;

  const Json& root_;
};

// Fields that say nothing about the value: title, description, default, examples, ...
bool IsAnnotation(std::string_view keyword);
// The types a schema allows: what "type" says, else what const, enum or the other fields are about;
// all of them where nothing says.
std::vector<std::string> TypesOf(const Subschema& subschema);
// "integer" for whole numbers.
std::string TypeOfValue(const Json& value);

}  // namespace litecache::grammar
