// Prompts that are longer than a model's context lose their middle.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace litecache::eval {

struct TruncatedText {
  std::string text;
  int64_t tokens = 0;  // with the special tokens that the tokenizer adds
  bool truncated = false;
};

// `text`, or, where it has more than `budget` tokens, the texts of its first and of its last
// budget / 2 tokens, joined; some tokens less where the joint makes the text longer again. Special
// tokens are counted and not written out. Throws InvalidArgument for a budget below 2.
TruncatedText TruncateMiddle(std::string_view text, int64_t budget,
                             const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::eval
