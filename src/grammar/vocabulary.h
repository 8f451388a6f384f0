// The byte strings of a tokenizer's tokens, as a tree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace litecache::grammar {

// Stands before the text of a control token, such as <|end|>. It is no byte of UTF-8, so that only
// a grammar that names the token allows it.
inline constexpr char kControl = '\xFF';

// One bit per token.
using TokenMask = std::vector<uint32_t>;

// A tree of byte strings in preorder: a walk skips to `end` when a byte does not fit.
struct TokenTree {
  struct Node {
    uint8_t byte = 0;
    uint32_t depth = 0;                         // 1: the first byte of a token
    uint32_t end = 0;                           // the node after the last one below this
    uint32_t tokens_begin = 0, tokens_end = 0;  // range in `tokens` of those that end here
  };
  std::vector<Node> nodes;
  std::vector<int32_t> tokens;
  uint32_t depth = 0;  // of the deepest node
};

// Immutable; any number of threads may use it at once.
class Vocabulary {
 public:
  // bytes[i] belongs to token i; empty: a token without text, which no grammar allows.
  explicit Vocabulary(std::vector<std::string> bytes);
  // With the tokenizer's special tokens as control tokens.
  static std::shared_ptr<const Vocabulary> Of(const tokenizer::Tokenizer& tokenizer);

  size_t size() const { return bytes_.size(); }
  const std::string& bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }

  // Tokens of whole characters that JSON strings contain unescaped; other() has the rest.
  const TokenTree& plain() const { return plain_; }
  const TokenTree& other() const { return other_; }
  // The plain tokens of at most that many characters; `characters` must be positive.
  const TokenMask& PlainUpTo(uint32_t characters) const {
    return plain_by_length_[std::min<size_t>(characters, plain_by_length_.size()) - 1];
  }

 private:
  std::vector<std::string> bytes_;
  TokenTree plain_;
  TokenTree other_;
  std::vector<TokenMask> plain_by_length_;  // of up to 1, 2, ... characters
};

}  // namespace litecache::grammar
