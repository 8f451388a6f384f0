// Strings and numbers of a schema, as automata over their JSON texts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/characters.h"
#include "grammar/schema_document.h"

namespace litecache::grammar {

// Writes between two states of an automaton. A schema that is `true` allows all of its type.
class ScalarWriter {
 public:
  explicit ScalarWriter(AutomatonBuilder* builder) : builder_(*builder), characters_(builder) {}

  // By minLength, maxLength, pattern or format. Throws InvalidArgument and Unsupported with the
  // path of the place.
  void String(const Subschema& s, StateId from, StateId to);
  // By minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf. Throws as above.
  void Number(const Subschema& s, bool integer, StateId from, StateId to);
  // The state to call for a property's name: any but these.
  StateId Key(const std::vector<std::string>& but);

 private:
  // A string of min to max characters, with all the escapes JSON has.
  void PlainString(uint32_t min, uint32_t max, StateId from, StateId to);

  AutomatonBuilder& builder_;
  CharacterWriter characters_;
  std::map<std::string, StateId> shared_;  // states to call, by what they are
};

}  // namespace litecache::grammar
