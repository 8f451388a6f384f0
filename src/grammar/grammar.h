// Grammars: which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/schema_document.h"
#include "grammar/vocabulary.h"
#include "litecache/token_constraint.h"

namespace litecache::grammar {

// A text around a JSON value: {"name": "f", "arguments": VALUE}.
struct FramedSchema {
  std::string before;
  Json schema;
  std::string after;
};

class MatchCache;

// What an answer may be, and what has been found out about it: the masks of places that some sample
// has been at. Any number of samples share one, on any thread.
class Grammar : public std::enable_shared_from_this<Grammar> {
 public:
  // A JSON text that the schema allows. Throws InvalidArgument and Unsupported naming the place in
  // the schema.
  static std::shared_ptr<Grammar> OfSchema(const Json& schema,
                                           std::shared_ptr<const Vocabulary> vocabulary);
  // A JSON object.
  static std::shared_ptr<Grammar> OfObject(std::shared_ptr<const Vocabulary> vocabulary);
  // One of several framed values; or, where `separator` is given, one or more of them with it in
  // between. `frames` is not empty.
  static std::shared_ptr<Grammar> OfFrames(const std::vector<FramedSchema>& frames,
                                           const std::string* separator,
                                           std::shared_ptr<const Vocabulary> vocabulary);

  Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);
  ~Grammar();

  // At the beginning.
  std::unique_ptr<TokenConstraint> NewConstraint() const;

  const Automaton& automaton() const { return automaton_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // The cache in use; one that has grown too large is replaced by an empty one. A lock is held.
  std::shared_ptr<MatchCache> Cache() const;
  std::mutex& mutex() const { return mutex_; }

 private:
  Automaton automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<MatchCache> cache_;
};

}  // namespace litecache::grammar
