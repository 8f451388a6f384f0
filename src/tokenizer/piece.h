// The data passed between the encoder's stages: views of text, some of them already tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace litecache::tokenizer {

// Holds text changed by a stage until encoding ends: bump allocation, because a megabyte of text is
// split into hundreds of thousands of pieces.
class TextArena {
 public:
  // Room for `size` bytes, valid as long as the arena exists.
  char* Allocate(size_t size) {
    if (size > left_) {
      const size_t block = size > kBlock ? size : kBlock;
      blocks_.push_back(std::make_unique_for_overwrite<char[]>(block));
      next_ = blocks_.back().get();
      left_ = block;
    }
    return next_;
  }
  // Keeps the first `size` bytes of the last Allocate().
  std::string_view Commit(size_t size) {
    const std::string_view kept(next_, size);
    next_ += size;
    left_ -= size;
    return kept;
  }
  std::string_view Copy(std::string_view text) {
    if (text.empty()) return {};
    std::memcpy(Allocate(text.size()), text.data(), text.size());
    return Commit(text.size());
  }

 private:
  static constexpr size_t kBlock = 1 << 16;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

// A part of the text, valid UTF-8, never empty, before or after it became a token.
struct Piece {
  std::string_view text;
  int32_t token = -1;         // >= 0: an added token; later stages leave it alone
  bool starts_input = false;  // its first character comes from the first one of the input
};

using Pieces = std::vector<Piece>;

}  // namespace litecache::tokenizer
