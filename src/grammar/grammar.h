// Grammars: which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/parameter_tags.h"
#include "grammar/schema_document.h"
#include "grammar/vocabulary.h"
#include "litecache/token_constraint.h"

namespace litecache::grammar {

// Text around a value: {"name": "f", "arguments": VALUE}.
struct FramedSchema {
  std::string before;
  Json schema;
  std::string after;
};

// Which framed values an answer has, and how they are written.
struct Frames {
  std::vector<FramedSchema> any;         // one of these; not empty
  std::optional<std::string> separator;  // set: one or more of them, with this in between
  std::string before, after;             // around all
  ArgumentForm form;                     // how the values are written
};

// What surrounds a model's thoughts.
struct ThoughtTags {
  std::string open;    // where not empty: thoughts begin with it, or there are none
  std::string close;   // ends them
  std::string answer;  // begins the answer, with or without thoughts before it
};

class MatchCache;

// The set of allowed answers, and a cache of the token masks of all places that samples have
// reached. Any number of samples on any threads share one grammar.
class Grammar : public std::enable_shared_from_this<Grammar> {
 public:
  // Accepts JSON texts that the schema allows. Throws InvalidArgument and Unsupported, naming the
  // place in the schema.
  static std::shared_ptr<Grammar> OfSchema(const Json& schema,
                                           std::shared_ptr<const Vocabulary> vocabulary);
  // Accepts a JSON object.
  static std::shared_ptr<Grammar> OfObject(std::shared_ptr<const Vocabulary> vocabulary);
  static std::shared_ptr<Grammar> OfFrames(const Frames& frames,
                                           std::shared_ptr<const Vocabulary> vocabulary);

  // A text that the regular expression matches from end to end (pattern.h).
  static std::shared_ptr<Grammar> OfPattern(std::string_view pattern,
                                            std::shared_ptr<const Vocabulary> vocabulary);
  // One of the texts, of which there is at least one.
  static std::shared_ptr<Grammar> OfChoices(const std::set<std::string>& texts,
                                            std::shared_ptr<const Vocabulary> vocabulary);
  // A text of a grammar in GBNF (gbnf.h).
  static std::shared_ptr<Grammar> OfGbnf(std::string_view source,
                                         std::shared_ptr<const Vocabulary> vocabulary);
  // What the model thinks, up to the end of tags.close, at most two spaces or line breaks,
  // tags.answer, and then a text of `answer`. Where tags.close begins with a control token,
  // thoughts contain none.
  static std::shared_ptr<Grammar> AfterReasoning(const Grammar& answer, const ThoughtTags& tags);

  Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);
  ~Grammar();

  // A constraint at the beginning of the text.
  std::unique_ptr<TokenConstraint> NewConstraint() const;
  // That of a constraint that NewConstraint() has made; null for another one.
  static std::shared_ptr<const Grammar> Of(const TokenConstraint& constraint);

  const Automaton& automaton() const { return automaton_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // The cache in use; one that has grown too large is replaced by an empty one. Call with the lock
  // held.
  std::shared_ptr<MatchCache> Cache() const;
  std::mutex& mutex() const { return mutex_; }

 private:
  Automaton automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<MatchCache> cache_;
};

}  // namespace litecache::grammar
