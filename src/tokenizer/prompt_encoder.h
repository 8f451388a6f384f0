// Encodes rendered prompts; special tokens in a request's own text are encoded as plain text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

// Special tokens written by the template become those tokens; spelled out in a message, they stay
// text. Immutable: any number of threads may use it at once.
class PromptEncoder {
 public:
  // `tokenizer` must outlive this.
  explicit PromptEncoder(const Tokenizer& tokenizer);

  // Throws what Tokenizer::Encode throws.
  std::vector<int32_t> Encode(const RenderedPrompt& prompt, size_t max_tokens = SIZE_MAX) const;

 private:
  struct SpecialToken {
    std::string text;
    int32_t id;
  };
  struct Occurrence {
    size_t begin;
    size_t end;
    int32_t id;
  };

  std::vector<Occurrence> FindSpecialTokens(const std::string& text) const;

  const Tokenizer& tokenizer_;
  std::vector<SpecialToken> special_;  // longest first
  bool starts_[256] = {};              // bytes that begin a special token
};

}  // namespace litecache::tokenizer
