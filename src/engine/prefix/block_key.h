// Names of token blocks: a hash of the block's tokens and of all tokens before it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace litecache::engine {

// 128 bits of XXH3. Blocks with the same name are told apart by data stored with them (their tokens
// and their parent's name), so a collision costs a hit and never gives wrong rows.
struct BlockKey {
  uint64_t high = 0;
  uint64_t low = 0;

  // 32 hexadecimal digits.
  std::string ToString() const;
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return key.low; }
};

// The parent name of a sequence's first block. space: everything besides the tokens that determines
// the blocks' bytes, so that blocks of different models or settings have different names.
BlockKey RootKey(std::string_view space);

BlockKey NextKey(const BlockKey& parent, std::span<const int32_t> tokens);

// The names of the complete blocks of block_tokens tokens in `tokens`.
std::vector<BlockKey> ChainKeys(const BlockKey& root, std::span<const int32_t> tokens,
                                int64_t block_tokens);

}  // namespace litecache::engine
