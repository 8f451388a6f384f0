#include "engine/prefix/block_key.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace litecache::engine {
namespace {

BlockKey Hash(std::span<const std::byte> bytes, uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {hash.high64, hash.low64};
}

}  // namespace

std::string BlockKey::ToString() const { return fmt::format("{:016x}{:016x}", high, low); }

BlockKey RootKey(std::string_view space) {
  return Hash(std::as_bytes(std::span(space)), /*seed=*/0);
}

BlockKey NextKey(const BlockKey& parent, std::span<const int32_t> tokens) {
  const BlockKey own = Hash(std::as_bytes(tokens), parent.low);
  const uint64_t words[4] = {parent.high, parent.low, own.high, own.low};
  return Hash(std::as_bytes(std::span(words)), /*seed=*/1);
}

std::vector<BlockKey> ChainKeys(const BlockKey& root, std::span<const int32_t> tokens,
                                int64_t block_tokens) {
  std::vector<BlockKey> keys;
  BlockKey key = root;
  const auto size = static_cast<size_t>(block_tokens);
  for (; tokens.size() >= size; tokens = tokens.subspan(size)) {
    key = NextKey(key, tokens.first(size));
    keys.push_back(key);
  }
  return keys;
}

}  // namespace litecache::engine
