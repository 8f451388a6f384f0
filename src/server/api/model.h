// The model that is served, and what requests are read against.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar_cache.h"
#include "litecache/engine.h"
#include "tokenizer/chat_encoder.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

struct RequestLimits {
  int64_t max_tokens = 0;             // of an answer; 0: what the context leaves
  int64_t default_max_tokens = 4096;  // where a request does not say; 0: what the context leaves
  int64_t max_prompt = 0;             // tokens; 0: what the context leaves
  int64_t max_samples = 64;           // answers of one request, over all its prompts
  bool trust_chat_template = false;   // requests may bring their own
};

// Immutable once made; any thread may read it.
struct ServedModel {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> names;  // what requests may call it; the first is reported
  std::unique_ptr<grammar::GrammarCache> grammars;  // over the engine's tokenizer
  std::optional<tokenizer::ChatEncoder> chat;       // none: the model has no chat template
  RequestLimits limits;
  std::time_t created = 0;

  const std::string& name() const { return names.front(); }
  const tokenizer::Tokenizer& tokenizer() const { return engine->tokenizer(); }
};

// A token alone, as it stands inside a text: with the space some tokenizers drop at the beginning
// of one. Bytes that are no character become U+FFFD.
std::string TokenString(const tokenizer::Tokenizer& tokenizer, int32_t token);

}  // namespace litecache::server
