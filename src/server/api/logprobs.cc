#include "server/api/logprobs.h"

#include <algorithm>
#include <utility>

#include "server/api/model.h"
#include "tokenizer/utf8.h"

namespace litecache::server {
namespace {

// By these, clients join the characters that several tokens share; the text of such a token does
// not have its bytes.
Json BytesOf(const tokenizer::Tokenizer& tokenizer, int32_t token, const std::string& text) {
  const bool part = text.find(tokenizer::kReplacementCharacter) != std::string::npos;
  Json bytes = Json::array();
  for (const char c : part ? tokenizer.TokenBytes(token) : text) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return bytes;
}

Json Entry(const tokenizer::Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string text = TokenString(tokenizer, token.token);
  return {{"token", text},
          {"logprob", token.logprob},
          {"bytes", BytesOf(tokenizer, token.token, text)}};
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

Json PromptLogprobJson(const tokenizer::Tokenizer& tokenizer, const PromptLogprob& given,
                       int count) {
  Json result = Json::object();
  const auto add = [&](const TokenLogprob& token, int64_t rank) {
    result[std::to_string(token.token)] = {{"logprob", token.logprob},
                                           {"rank", rank},
                                           {"decoded_token", TokenString(tokenizer, token.token)}};
  };
  add(given.token, given.rank);
  for (size_t i = 0; i < std::min(given.top.size(), static_cast<size_t>(count)); ++i) {
    if (given.top[i].token != given.token.token) add(given.top[i], static_cast<int64_t>(i) + 1);
  }
  return result;
}

void CompletionLogprobs::Add(const TokenLogprob& token, const std::vector<TokenLogprob>& top,
                             int count) {
  Json listed = Json::object();
  // Several tokens may have the same text, parts of characters: the likeliest one stands for them.
  for (size_t i = 0; i < std::min(top.size(), static_cast<size_t>(count)); ++i) {
    listed.emplace(TokenString(*tokenizer_, top[i].token), top[i].logprob);
  }
  listed.emplace(TokenString(*tokenizer_, token.token), token.logprob);
  Add(token.token, token.logprob, std::move(listed));
}

void CompletionLogprobs::Add(int32_t token, Json logprob, Json top) {
  const std::string text = TokenString(*tokenizer_, token);
  tokens_.push_back(text);
  logprobs_.push_back(std::move(logprob));
  top_.push_back(std::move(top));
  offsets_.push_back(offset_);
  if (!skip_special_ || !tokenizer_->IsSpecial(token)) offset_ += Characters(text);
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
