// Cuts the middle out of prompts that are longer than a model's context.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace litecache::eval {

struct TruncatedText {
  std::string text;
  int64_t tokens = 0;  // including the special tokens that the tokenizer adds
  bool truncated = false;
};

// Returns `text`, or, if it has more than `budget` tokens, the joined texts of its first and last
// budget / 2 tokens; a few tokens fewer if joining makes the text longer again. Special tokens are
// counted but not written out. Throws InvalidArgument for a budget below 2.
TruncatedText TruncateMiddle(std::string_view text, int64_t budget,
                             const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::eval
