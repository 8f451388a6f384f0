// Compiles JSON schemas to automata.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/parameter_tags.h"
#include "grammar/scalar_writer.h"
#include "grammar/schema_document.h"

namespace litecache::grammar {

// Writes the JSON texts of a schema's values into an automaton: all of them, or a subset where JSON
// Schema leaves the notation open (README.md lists what is fixed: the order of properties, white
// space, ...). Never a text whose value the schema forbids.
class SchemaCompiler {
 public:
  // form: in which a value that Compile() is given is written.
  explicit SchemaCompiler(AutomatonBuilder* builder, const ArgumentForm& form = {})
      : builder_(*builder),
        scalars_(builder, form.quotes),
        tags_(form.tags),
        root_form_(form.tags       ? kParameters
                   : form.keywords ? kKeywords
                                   : kJson),
        spaces_(!form.quotes) {}

  // Returns the callee for a value of the schema; references must stay within the same document.
  // Throws InvalidArgument for malformed schemas and Unsupported for keywords that are not
  // supported, both with the path of the place. `root` is used only during the call.
  StateId Compile(const Json& root);

  // A callee for at most one space or line break, before the first character of an answer.
  StateId LeadingSpace() { return AtMostOne(" \n"); }

 private:
  // How a value is written.
  enum Form {
    kJson,
    kParameters,  // the fields of an object as parameters in tags
    kParameter,   // one of their values, up to the end of its tag
    kKeywords,    // the fields of an object as arguments of a call
  };
  struct Pending {
    Subschema subschema;
    Form form;
    StateId start;
    StateId end;
  };
  // What an object may have. additional: the schema of properties that `named` does not have.
  struct Properties {
    std::vector<std::pair<std::string, Json>> named;  // in the schema's order
    std::set<std::string> required;
    Json additional;
  };

  // A callee for a subschema; its contents are written later.
  StateId Rule(Subschema subschema, Form form = kJson);
  void Write(const Pending& rule);
  void WriteChoices(const Subschema& s, const char* keyword, Form form, StateId from, StateId to);
  void WriteConstants(const Subschema& s, Form form, StateId from, StateId to);
  void WriteType(const Subschema& s, const std::string& type, Form form, StateId from, StateId to);
  void WriteArray(const Subschema& s, StateId from, StateId to);
  Properties PropertiesOf(const Subschema& s) const;
  void WriteObject(const Subschema& s, Form form, StateId from, StateId to);
  void WriteParameters(const Subschema& s, StateId from, StateId to);
  void WriteMap(const Subschema& s, const Json& values, StateId from, StateId to);
  void WriteMember(Form form, StateId from, StateId key, StateId value, StateId to);
  // The name of an object's field; throws Unsupported where it cannot be written.
  std::string Name(const std::string& name, Form form, const std::string& path) const;

  // The state after a parameter's value.
  StateId ParameterEnd(StateId to);

  // Callees.
  StateId Space();  // between values: nothing, a space, or a new line and its indentation
  StateId AtMostOne(std::string_view characters);

  AutomatonBuilder& builder_;
  ScalarWriter scalars_;
  const std::optional<ParameterTags> tags_;
  const Form root_form_;
  const bool spaces_;  // there may be white space
  const SchemaDocument* document_ = nullptr;
  std::map<std::pair<std::string, Form>, StateId> rules_;  // keyed by the schema's text
  size_t rule_bytes_left_ = 0;
  size_t work_left_ = kSchemaWork;
  std::deque<Pending> pending_;
  std::map<std::string, StateId> shared_;  // callees by kind
};

}  // namespace litecache::grammar
