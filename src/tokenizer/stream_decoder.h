// Decodes tokens to text as they are generated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace litecache::tokenizer {

class DecodeChain;

// Returns each token's text as soon as later tokens cannot change it. The concatenation of all
// results equals Tokenizer::Decode of all ids, byte by byte, and no result splits a character:
// bytes of an incomplete character wait for the rest of it. `kept`: special tokens that
// skip_special does not leave out.
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                std::vector<int32_t> kept = {});
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that `id` makes certain; often empty, sometimes that of several tokens.
  std::string Add(int32_t id);
  // The rest, with U+FFFD for an incomplete character. The next Add() begins a new text.
  std::string Flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::vector<int32_t> kept_;
  std::unique_ptr<DecodeChain> chain_;
};

}  // namespace litecache::tokenizer
