// A cache of compiled grammars.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace litecache::grammar {

// Keeps the most recently used grammars, so that a second request with the same schema finds it
// compiled and its masks computed; also the tokenizer's vocabulary, made when the first grammar
// needs it (0.1 s for 128K tokens). Thread-safe.
class GrammarCache {
 public:
  static constexpr size_t kGrammars = 8;

  // `tokenizer` must outlive this.
  explicit GrammarCache(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::shared_ptr<const TokenConstraint> OfSchema(const Json& schema);
  std::shared_ptr<const TokenConstraint> OfObject();
  std::shared_ptr<const TokenConstraint> OfFrames(const Frames& frames);
  std::shared_ptr<const TokenConstraint> OfPattern(const std::string& pattern);
  std::shared_ptr<const TokenConstraint> OfChoices(const std::set<std::string>& texts);
  std::shared_ptr<const TokenConstraint> OfGbnf(const std::string& source);
  // Grammar::AfterReasoning() of a constraint that this has made.
  std::shared_ptr<const TokenConstraint> AfterReasoning(const TokenConstraint& answer,
                                                        const ThoughtTags& tags);

 private:
  using Make = std::function<std::shared_ptr<Grammar>(std::shared_ptr<const Vocabulary>)>;
  std::shared_ptr<const TokenConstraint> Find(const std::string& key, const Make& make);

  const tokenizer::Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> grammars_;  // newest first
};

}  // namespace litecache::grammar
