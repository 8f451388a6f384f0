// Token counts and token form of generated texts under a model's tokenizer.
#pragma once

#include <memory>
#include <string>

#include "eval/ruler/bulk.h"
#include "eval/ruler/tasks.h"
#include "tokenizer/tokenizer.h"

namespace litecache::eval {

// Counts what the model sees: the special tokens that its tokenizer adds included.
TokenCounter CountTokens(std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

// A count for tools that have no tokenizer: pieces as byte-level BPE vocabularies of a few thousand
// entries cut them (words of up to `chars_per_token` letters, single digits and punctuation).
// Throws InvalidArgument below 1.
TokenCounter EstimateTokens(double chars_per_token);

// A training document in binary: u32 n, n u32 token ids (no special tokens added), n u8 classes
// (0 text, 1 question, 2 answer; a token that reaches over a border has the larger one), all
// little-endian. For byte-level BPE tokenizers only; throws Unsupported for others.
class TokenFormat {
 public:
  explicit TokenFormat(std::shared_ptr<const tokenizer::Tokenizer> tokenizer);
  std::string operator()(const TrainingDocument& document) const;

 private:
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::vector<uint32_t> token_bytes_;  // by id
};

}  // namespace litecache::eval
