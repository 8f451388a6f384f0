// Log-probabilities as the two completion APIs write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "litecache/engine.h"
#include "server/api/json.h"
#include "tokenizer/tokenizer.h"

namespace litecache::server {

// Chat: {"token", "logprob", "bytes", "top_logprobs": [...]} of a chunk's token.
Json ChatLogprob(const tokenizer::Tokenizer& tokenizer, const Chunk& chunk);

// A prompt token in vLLM's form: {ID: {"logprob", "rank", "decoded_token"}} for the token itself
// and the `count` most likely ones.
Json PromptLogprobJson(const tokenizer::Tokenizer& tokenizer, const PromptLogprob& given,
                       int count);

// Completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, built token by token.
class CompletionLogprobs {
 public:
  // skip_special: special tokens are no part of the text.
  CompletionLogprobs(const tokenizer::Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The first token of a prompt, of which the model says nothing.
  void AddFirst(int32_t token) { Add(token, nullptr, nullptr); }
  // `count` of `top` are listed, and the token itself.
  void Add(const TokenLogprob& token, const std::vector<TokenLogprob>& top, int count);
  bool empty() const { return tokens_.empty(); }
  // Returns what was added since the last call.
  Json Take();

 private:
  void Add(int32_t token, Json logprob, Json top);

  const tokenizer::Tokenizer* tokenizer_;
  bool skip_special_;
  Json tokens_ = Json::array();
  Json logprobs_ = Json::array();
  Json top_ = Json::array();
  Json offsets_ = Json::array();
  int64_t offset_ = 0;  // characters
};

}  // namespace litecache::server
