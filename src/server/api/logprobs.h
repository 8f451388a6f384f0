// Log-probabilities as the two completion APIs write them.
#pragma once

#include <cstdint>
#include <string>

#include "litecache/engine.h"
#include "server/api/json.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

// Chat: {"token", "logprob", "bytes", "top_logprobs": [...]} of a chunk's token.
Json ChatLogprob(const tokenizer::Tokenizer& tokenizer, const Chunk& chunk);

// Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, built token by token.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const tokenizer::Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void Add(const Chunk& chunk);
  bool empty() const { return tokens_.empty(); }
  // Returns what was added since the last call.
  Json Take();

 private:
  const tokenizer::Tokenizer* tokenizer_;
  Json tokens_ = Json::array();
  Json logprobs_ = Json::array();
  Json top_ = Json::array();
  Json offsets_ = Json::array();
  int64_t offset_ = 0;  // characters
};

}  // namespace litecache::server
