// JSON schemas to automata.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/scalar_writer.h"
#include "grammar/schema_document.h"

namespace litecache::grammar {

// Writes the JSON texts of values into an automaton: those of a schema, or a part of them where
// JSON Schema leaves open how a value is written (README.md lists what is fixed: the order of
// properties, white space, ...). Never a text whose value the schema forbids.
class SchemaCompiler {
 public:
  explicit SchemaCompiler(AutomatonBuilder* builder) : builder_(*builder), scalars_(builder) {}

  // The state to call for a value of the schema; what it refers to is in the same document. Throws
  // InvalidArgument for malformed schemas, Unsupported for keywords that are not supported, each
  // with the path of the place. `root` must live until then only.
  StateId Compile(const Json& root);

  // At most one space or line break (to call): before the first character of an answer.
  StateId LeadingSpace() { return AtMostOne(" \n"); }

 private:
  struct Pending {
    Subschema subschema;
    StateId start;
    StateId end;
  };

  // The state to call for a subschema; what it consists of is written later.
  StateId Rule(Subschema subschema);
  void Write(const Pending& rule);
  void WriteChoices(const Subschema& s, const char* keyword, StateId from, StateId to);
  void WriteConstants(const Subschema& s, StateId from, StateId to);
  void WriteType(const Subschema& s, const std::string& type, StateId from, StateId to);
  void WriteArray(const Subschema& s, StateId from, StateId to);
  void WriteObject(const Subschema& s, StateId from, StateId to);
  void WriteMap(const Subschema& s, const Json& values, StateId from, StateId to);
  void WriteMember(StateId from, StateId key, StateId value, StateId to);

  // States to call.
  StateId Space();  // between values: nothing, a space, or a new line and its indentation
  StateId AtMostOne(std::string_view characters);

  AutomatonBuilder& builder_;
  ScalarWriter scalars_;
  const SchemaDocument* document_ = nullptr;
  std::map<std::string, StateId> rules_;  // by the schema's text
  size_t rule_bytes_left_ = 0;
  size_t work_left_ = kSchemaWork;
  std::deque<Pending> pending_;
  std::map<std::string, StateId> shared_;  // states to call, by what they are
};

}  // namespace litecache::grammar
