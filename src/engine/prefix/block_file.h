// A file of the prefix store: the KV of one block of tokens.
//
//   header   112 bytes, little-endian: magic, the block's name, its parent's name, the space's
//            name, depth, numbers of tokens and of KV bytes, two checksums (XXH3, 64 bits)
//   tokens   int32, as many as the header gives
//   payload  written by kv::Cache::ExportBlock
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix/block_key.h"

namespace litecache::engine {

struct BlockHeader {
  BlockKey key;
  BlockKey parent;
  BlockKey space;      // RootKey of the store's space
  uint32_t depth = 0;  // number of blocks before it
  uint32_t tokens = 0;
  uint64_t payload_bytes = 0;

  static constexpr uint64_t kBytes = 112;
  uint64_t file_bytes() const { return kBytes + tokens * sizeof(int32_t) + payload_bytes; }
};

// A block in memory, to write or as read.
struct Block {
  BlockHeader header;
  std::vector<int32_t> tokens;
  // The whole file in one array: header.kBytes bytes, the tokens, the payload.
  std::vector<std::byte> bytes;

  std::span<std::byte> payload() {
    return std::span(bytes).last(static_cast<size_t>(header.payload_bytes));
  }
  std::span<const std::byte> payload() const {
    return std::span(bytes).last(static_cast<size_t>(header.payload_bytes));
  }
};

// Makes a block with room for its payload, which the caller fills; Seal() then completes the bytes.
Block MakeBlock(const BlockKey& space, const BlockKey& parent, uint32_t depth,
                std::span<const int32_t> tokens, uint64_t payload_bytes);
// Writes header and checksums.
void Seal(Block* block);

// Parses at least the first BlockHeader::kBytes bytes of a file. Throws FileError, which begins
// with `name`, for anything that Seal() did not write.
BlockHeader ParseHeader(std::span<const std::byte> bytes, const std::string& name);
// Parses a whole file. Throws FileError also for a wrong length or checksum.
Block ParseBlock(std::vector<std::byte> bytes, const std::string& name);

}  // namespace litecache::engine
