// Rendered prompts to token ids, with the special tokens of a request's own text as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

// Special tokens that the template wrote are those tokens; where a message spells one out, it stays
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
  bool starts_[256] = {};              // bytes that begin one
};

}  // namespace litecache::tokenizer
