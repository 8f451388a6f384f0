// The served model and the limits that requests are checked against.
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
  int64_t default_max_tokens = 4096;  // if the request sets none; 0: what the context leaves
  int64_t max_prompt = 0;             // tokens; 0: what the context leaves
  int64_t max_batch = 64;             // sequences that the engine decodes together
  int64_t max_samples = 64;           // answers per request, over all its prompts
  bool trust_chat_template = false;   // requests may send their own
};

// Immutable once made; any thread may read it.
struct ServedModel {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> names;  // names that requests may use; the first one is reported
  std::unique_ptr<grammar::GrammarCache> grammars;  // over the engine's tokenizer
  std::optional<tokenizer::ChatEncoder> chat;       // none: the model has no chat template
  RequestLimits limits;
  std::time_t created = 0;

  const std::string& name() const { return names.front(); }
  const tokenizer::Tokenizer& tokenizer() const { return engine->tokenizer(); }
};

// The text of a single token as it appears inside a text: with the space that some tokenizers drop
// at the beginning of a text. Bytes that do not form a character become U+FFFD.
std::string TokenString(const tokenizer::Tokenizer& tokenizer, int32_t token);

}  // namespace litecache::server
