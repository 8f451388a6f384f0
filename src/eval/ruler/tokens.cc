#include "eval/ruler/tokens.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace litecache::eval {

static_assert(std::endian::native == std::endian::little);

TokenCounter CountTokens(std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
  return [tokenizer = std::move(tokenizer)](std::string_view text) {
    return static_cast<int64_t>(
        tokenizer->Encode(text, {.add_special_tokens = true, .parse_special = false}).size());
  };
}

TokenFormat::TokenFormat(std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  // A byte-level vocabulary has one character per byte.
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string token = tokenizer_->IdToToken(id).value_or("");
    token_bytes_.push_back(
        static_cast<uint32_t>(std::count_if(token.begin(), token.end(), [](char c) {
          return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
        })));
  }
}

std::string TokenFormat::operator()(const TrainingDocument& document) const {
  const std::vector<int32_t> ids =
      tokenizer_->Encode(document.text, {.add_special_tokens = false, .parse_special = false});
  std::string classes(ids.size(), '\0');
  int64_t begin = 0;
  size_t span = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t end = begin + token_bytes_[static_cast<size_t>(ids[i])];
    while (span < document.spans.size() && document.spans[span].end <= begin) ++span;
    for (size_t s = span; s < document.spans.size() && document.spans[s].begin < end; ++s) {
      classes[i] = std::max<char>(classes[i], document.spans[s].is_answer ? 2 : 1);
    }
    begin = end;
  }
  if (begin != static_cast<int64_t>(document.text.size())) {
    throw Unsupported(
        "the token form needs a byte-level BPE tokenizer, and text that its normalizer leaves "
        "alone: "
        "{} bytes of text became {} bytes of tokens",
        document.text.size(), begin);
  }
  const auto count = static_cast<uint32_t>(ids.size());
  std::string out(sizeof(count) + ids.size() * sizeof(int32_t), '\0');
  std::memcpy(out.data(), &count, sizeof(count));
  std::memcpy(out.data() + sizeof(count), ids.data(), ids.size() * sizeof(int32_t));
  return out + classes;
}

TokenCounter EstimateTokens(double chars_per_token) {
  if (!(chars_per_token >= 1)) {
    throw InvalidArgument("--chars-per-token: {} is less than 1", chars_per_token);
  }
  return [chars_per_token](std::string_view text) {
    const auto letter = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<uint8_t>(c) >= 0x80;
    };
    const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
    int64_t tokens = 0;
    for (size_t i = 0; i < text.size();) {
      size_t end = i + 1;
      if (letter(text[i])) {
        while (end < text.size() && letter(text[end])) ++end;
        tokens += static_cast<int64_t>(std::ceil(static_cast<double>(end - i) / chars_per_token));
      } else if (space(text[i])) {
        while (end < text.size() && space(text[end])) ++end;
        // A single space belongs to the word after it.
        tokens += end - i > 1 || text[i] != ' ';
      } else {
        ++tokens;
      }
      i = end;
    }
    return tokens;
  };
}

}  // namespace litecache::eval
