// Token counts and token ids of generated texts under a model's tokenizer.
#pragma once

#include <memory>
#include <string>

#include "eval/ruler/bulk.h"
#include "eval/ruler/tasks.h"
#include "tokenizer/tokenizer.h"

namespace litecache::eval {

// Counts the model's input tokens, including special tokens that the tokenizer adds.
TokenCounter CountTokens(std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

// An estimate for tools without a tokenizer: pieces as a byte-level BPE vocabulary of a few
// thousand entries would produce them (words of up to `chars_per_token` letters, single digits and
// punctuation). Throws InvalidArgument below 1.
TokenCounter EstimateTokens(double chars_per_token);

// A training document in binary: u32 n, n u32 token ids (no special tokens added), n u8 classes (0
// text, 1 question, 2 answer; a token across a border gets the larger one), all little-endian. Only
// for byte-level BPE tokenizers; throws Unsupported for others.
class TokenFormat {
 public:
  explicit TokenFormat(std::shared_ptr<const tokenizer::Tokenizer> tokenizer);
  std::string operator()(const TrainingDocument& document) const;

 private:
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::vector<uint32_t> token_bytes_;  // by id
};

}  // namespace litecache::eval
