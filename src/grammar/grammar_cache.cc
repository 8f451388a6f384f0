#include "grammar/grammar_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace litecache::grammar {

std::shared_ptr<const TokenConstraint> GrammarCache::OfSchema(const Json& schema) {
  return Find("schema " + schema.dump(), [&](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfSchema(schema, std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::OfObject() {
  return Find("object", [](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfObject(std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::OfFrames(const Frames& frames) {
  Json key = {frames.separator ? Json(*frames.separator) : Json(), frames.before, frames.after};
  if (const auto& tags = frames.form.tags) {
    key.push_back(
        {tags->name, tags->name_end, tags->value, tags->end, tags->lines, tags->separator});
  }
  if (const auto& quotes = frames.form.quotes) key.push_back({quotes->text, quotes->control});
  if (frames.form.keywords) key.push_back("keywords");
  for (const FramedSchema& frame : frames.any) {
    key.push_back({{"before", frame.before}, {"schema", frame.schema}, {"after", frame.after}});
  }
  // Frames may name control tokens, which are not UTF-8.
  const std::string text = key.dump(-1, ' ', false, Json::error_handler_t::replace);
  return Find("frames " + text, [&](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfFrames(frames, std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::OfPattern(const std::string& pattern) {
  return Find("pattern " + pattern, [&](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfPattern(pattern, std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::OfChoices(const std::set<std::string>& texts) {
  return Find("choices " + Json(texts).dump(), [&](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfChoices(texts, std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::OfGbnf(const std::string& source) {
  return Find("gbnf " + source, [&](std::shared_ptr<const Vocabulary> vocabulary) {
    return Grammar::OfGbnf(source, std::move(vocabulary));
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::AfterReasoning(const TokenConstraint& answer,
                                                                    const ThoughtTags& tags) {
  const std::shared_ptr<const Grammar> grammar = Grammar::Of(answer);
  LC_CHECK(grammar != nullptr);
  std::string key = fmt::format("thoughts {} {} {} ", tags.open, tags.close, tags.answer);
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find(grammars_, grammar, [](const auto& one) { return one.second; });
    key = found != grammars_.end() ? key + found->first : std::string();
  }
  // One that the cache has dropped in between has no key.
  if (key.empty()) return Grammar::AfterReasoning(*grammar, tags)->NewConstraint();
  return Find(key, [&](const std::shared_ptr<const Vocabulary>&) {
    return Grammar::AfterReasoning(*grammar, tags);
  });
}

std::shared_ptr<const TokenConstraint> GrammarCache::Find(const std::string& key,
                                                          const Make& make) {
  std::shared_ptr<const Vocabulary> vocabulary;
  {
    const std::lock_guard lock(mutex_);
    if (vocabulary_ == nullptr) vocabulary_ = Vocabulary::Of(tokenizer_);
    vocabulary = vocabulary_;
    for (auto it = grammars_.begin(); it != grammars_.end(); ++it) {
      if (it->first != key) continue;
      grammars_.splice(grammars_.begin(), grammars_, it);
      return grammars_.front().second->NewConstraint();
    }
  }
  // Outside the lock, because a large schema takes a while. Two threads may compile the same one;
  // either result is fine.
  const std::shared_ptr<const Grammar> grammar = make(vocabulary);
  {
    const std::lock_guard lock(mutex_);
    grammars_.emplace_front(key, grammar);
    if (grammars_.size() > kGrammars) grammars_.pop_back();
  }
  return grammar->NewConstraint();
}

}  // namespace litecache::grammar
