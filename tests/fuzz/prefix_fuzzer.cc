// Arbitrary bytes as a file of the prefix store: an error, or a block that matches its header. The
// fuzzer cannot guess checksums and names, so the same bytes are also tried with correct ones.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/prefix/block_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

using litecache::engine::Block;
using litecache::engine::BlockHeader;

void Try(std::vector<std::byte> bytes) {
  const size_t size = bytes.size();
  try {
    const BlockHeader header = litecache::engine::ParseHeader(
        std::span(bytes).first(std::min<size_t>(size, BlockHeader::kBytes)), "fuzz");
    LC_CHECK(header.tokens > 0);
    const Block block = litecache::engine::ParseBlock(std::move(bytes), "fuzz");
    LC_CHECK(block.tokens.size() == block.header.tokens);
    LC_CHECK(block.payload().size() == block.header.payload_bytes);
    LC_CHECK(block.bytes.size() == size && size == block.header.file_bytes());
    LC_CHECK(litecache::engine::NextKey(block.header.parent, block.tokens) == block.header.key);
  } catch (const litecache::FileError&) {
  }
}

// Gives the header the name that belongs to the tokens it counts, where they are there.
void PutName(std::vector<std::byte>* bytes) {
  constexpr size_t kKey = 8, kParent = 24, kTokens = 60;
  uint32_t tokens = 0;
  std::memcpy(&tokens, bytes->data() + kTokens, sizeof(tokens));
  const size_t most = (bytes->size() - BlockHeader::kBytes) / sizeof(int32_t);
  if (tokens == 0 || tokens > most) return;
  std::vector<int32_t> ids(tokens);
  std::memcpy(ids.data(), bytes->data() + BlockHeader::kBytes, tokens * sizeof(int32_t));
  litecache::engine::BlockKey parent;
  std::memcpy(&parent, bytes->data() + kParent, sizeof(parent));
  const auto key = litecache::engine::NextKey(parent, ids);
  std::memcpy(bytes->data() + kKey, &key, sizeof(key));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* const begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  Try(bytes);
  if (size < BlockHeader::kBytes) return 0;
  PutName(&bytes);
  const uint64_t body = XXH3_64bits(bytes.data() + BlockHeader::kBytes, size - BlockHeader::kBytes);
  std::memcpy(bytes.data() + BlockHeader::kBytes - 16, &body, 8);
  const uint64_t header = XXH3_64bits(bytes.data(), BlockHeader::kBytes - 8);
  std::memcpy(bytes.data() + BlockHeader::kBytes - 8, &header, 8);
  Try(std::move(bytes));
  return 0;
}
