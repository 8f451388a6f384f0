#include "server/api/logprobs.h"

#include <algorithm>

#include "server/api/model.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

// null if the token is part of a character: its text does not determine its bytes.
Json BytesOf(const std::string& text) {
  if (text.find(tokenizer::kReplacementCharacter) != std::string::npos) return nullptr;
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json Entry(const tokenizer::Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string text = TokenString(tokenizer, token.token);
  return {{"token", text}, {"logprob", token.logprob}, {"bytes", BytesOf(text)}};
}

int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

Json ChatLogprob(const tokenizer::Tokenizer& tokenizer, const Chunk& chunk) {
  Json entry = Entry(tokenizer, *chunk.logprob);
  Json top = Json::array();
  for (const TokenLogprob& token : chunk.top_logprobs) top.push_back(Entry(tokenizer, token));
  entry["top_logprobs"] = std::move(top);
  return entry;
}

void CompletionLogprobs::Add(const Chunk& chunk) {
  if (!chunk.logprob) return;
  const std::string text = TokenString(*tokenizer_, chunk.logprob->token);
  tokens_.push_back(text);
  logprobs_.push_back(chunk.logprob->logprob);
  Json top = Json::object();
  for (const TokenLogprob& token : chunk.top_logprobs) {
    top[TokenString(*tokenizer_, token.token)] = token.logprob;
  }
  top_.push_back(std::move(top));
  offsets_.push_back(offset_);
  offset_ += Characters(text);
}

Json CompletionLogprobs::Take() {
  Json result = {{"tokens", std::move(tokens_)},
                 {"token_logprobs", std::move(logprobs_)},
                 {"top_logprobs", std::move(top_)},
                 {"text_offset", std::move(offsets_)}};
  tokens_ = logprobs_ = top_ = offsets_ = Json::array();
  return result;
}

}  // namespace litecache::server
