// Strings and numbers of a schema, as automata over their JSON texts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/characters.h"
#include "grammar/parameter_tags.h"
#include "grammar/schema_document.h"

namespace litecache::grammar {

// Writes between two states of an automaton. The schema `true` allows all values of the type.
class ScalarWriter {
 public:
  // quotes: those of strings; none: JSON's.
  explicit ScalarWriter(AutomatonBuilder* builder,
                        const std::optional<StringQuotes>& quotes = std::nullopt)
      : builder_(*builder),
        characters_(builder),
        plain_(builder, CharacterWriter::kPlain),
        quotes_(quotes) {}

  // Applies minLength, maxLength, pattern or format. Throws InvalidArgument and Unsupported with
  // the path of the place.
  void String(const Subschema& s, StateId from, StateId to);
  // The same without quotes and escapes. The text does not contain `end_tag`.
  void Parameter(const Subschema& s, std::string_view end_tag, StateId from, StateId to);
  // Applies minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf. Throws as above.
  void Number(const Subschema& s, bool integer, StateId from, StateId to);
  // A callee for a property name other than those in `but`.
  StateId Key(const std::vector<std::string>& but);
  // A property's name; unset: it cannot be written.
  std::optional<std::string> Name(const std::string& name) const;
  // A constant; unset: it cannot be written.
  std::optional<std::string> Text(const Json& value) const;

 private:
  // Of the schema's strings, by pattern or format.
  static std::optional<CharacterAutomaton> Pattern(const Subschema& s);
  // Accepts a string of min to max characters, with all escapes of JSON.
  void PlainString(uint32_t min, uint32_t max, StateId from, StateId to);
  // A text that `characters` accepts, between quotes_.
  void Quoted(const CharacterAutomaton& characters, uint32_t min, uint32_t max, StateId from,
              StateId to);
  std::string Quote() const;  // as bytes of the automaton

  AutomatonBuilder& builder_;
  CharacterWriter characters_, plain_;
  const std::optional<StringQuotes> quotes_;
  std::map<std::string, StateId> shared_;  // callees by kind
};

}  // namespace litecache::grammar
