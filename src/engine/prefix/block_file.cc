#include "engine/prefix/block_file.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace litecache::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

// The header's layout in the file.
struct RawHeader {
  char magic[8];
  uint64_t key[2], parent[2], space[2];
  uint32_t depth;
  uint32_t tokens;
  uint64_t payload_bytes;
  uint64_t reserved[3];
  uint64_t body_checksum;    // of everything behind the header
  uint64_t header_checksum;  // of everything before itself
};
static_assert(sizeof(RawHeader) == BlockHeader::kBytes && std::is_trivially_copyable_v<RawHeader>);

// The last character is the format's version.
constexpr char kMagic[9] = "LCPREFX1";

// Far above any use; keeps sums of sizes within 64 bits.
constexpr uint32_t kMaxTokens = 1u << 20;
constexpr uint64_t kMaxPayload = uint64_t{1} << 40;

uint64_t Checksum(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

void Put(const BlockKey& key, uint64_t (&raw)[2]) {
  raw[0] = key.high;
  raw[1] = key.low;
}

}  // namespace

Block MakeBlock(const BlockKey& space, const BlockKey& parent, uint32_t depth,
                std::span<const int32_t> tokens, uint64_t payload_bytes) {
  LC_CHECK(!tokens.empty() && tokens.size() <= kMaxTokens && payload_bytes <= kMaxPayload);
  Block block;
  block.header = {.key = NextKey(parent, tokens),
                  .parent = parent,
                  .space = space,
                  .depth = depth,
                  .tokens = static_cast<uint32_t>(tokens.size()),
                  .payload_bytes = payload_bytes};
  block.tokens.assign(tokens.begin(), tokens.end());
  block.bytes.resize(block.header.file_bytes());
  std::memcpy(block.bytes.data() + BlockHeader::kBytes, tokens.data(), tokens.size_bytes());
  return block;
}

void Seal(Block* block) {
  RawHeader raw{};
  std::memcpy(raw.magic, kMagic, sizeof(raw.magic));
  const BlockHeader& header = block->header;
  Put(header.key, raw.key);
  Put(header.parent, raw.parent);
  Put(header.space, raw.space);
  raw.depth = header.depth;
  raw.tokens = header.tokens;
  raw.payload_bytes = header.payload_bytes;
  raw.body_checksum =
      Checksum(block->bytes.data() + sizeof(raw), block->bytes.size() - sizeof(raw));
  raw.header_checksum = Checksum(&raw, sizeof(raw) - sizeof(raw.header_checksum));
  std::memcpy(block->bytes.data(), &raw, sizeof(raw));
}

BlockHeader ParseHeader(std::span<const std::byte> bytes, const std::string& name) {
  RawHeader raw;
  if (bytes.size() < sizeof(raw)) {
    throw FileError("{}: {} bytes are too few for a block's header", name, bytes.size());
  }
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (std::memcmp(raw.magic, kMagic, sizeof(raw.magic)) != 0) {
    throw FileError("{}: not a prefix block, or from another version", name);
  }
  if (raw.header_checksum != Checksum(&raw, sizeof(raw) - sizeof(raw.header_checksum))) {
    throw FileError("{}: the header is damaged (its checksum differs)", name);
  }
  if (raw.tokens == 0 || raw.tokens > kMaxTokens || raw.payload_bytes > kMaxPayload) {
    throw FileError("{}: {} tokens and {} bytes are out of range", name, raw.tokens,
                    raw.payload_bytes);
  }
  return {.key = {raw.key[0], raw.key[1]},
          .parent = {raw.parent[0], raw.parent[1]},
          .space = {raw.space[0], raw.space[1]},
          .depth = raw.depth,
          .tokens = raw.tokens,
          .payload_bytes = raw.payload_bytes};
}

Block ParseBlock(std::vector<std::byte> bytes, const std::string& name) {
  Block block;
  block.header = ParseHeader(bytes, name);
  if (bytes.size() != block.header.file_bytes()) {
    throw FileError("{}: {} bytes, but the header says {}", name, bytes.size(),
                    block.header.file_bytes());
  }
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (raw.body_checksum != Checksum(bytes.data() + sizeof(raw), bytes.size() - sizeof(raw))) {
    throw FileError("{}: the contents are damaged (their checksum differs)", name);
  }
  block.tokens.resize(block.header.tokens);
  std::memcpy(block.tokens.data(), bytes.data() + BlockHeader::kBytes,
              block.tokens.size() * sizeof(int32_t));
  if (NextKey(block.header.parent, block.tokens) != block.header.key) {
    throw FileError("{}: the name does not belong to the tokens", name);
  }
  block.bytes = std::move(bytes);
  return block;
}

}  // namespace litecache::engine
