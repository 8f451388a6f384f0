// The blocks of rows that sparse prefill kept of a real model's prompt, recorded by
// `litecache-lab record-blocks`: for measurements at shapes with random weights, which keep nearly
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lab/blocks/block_map.h"
#include "lab/namespaces.h"

namespace litecache::lab {

struct BlockPatterns {
  int64_t layers = 0, q_heads = 0;
  // The prompt's tokens: whole blocks of queries, and blocks of rows.
  int64_t tokens = 0;
  int64_t query_rows = 0;   // tokens of a block of queries: 128, or 192
  double mass = 0;          // KvOptions::prefill_mass
  std::string model;        // name of its directory
  std::string fingerprint;  // of its weights
  std::string text;         // name of its file
  std::string text_hash;    // of the text's tokens
  std::string created;      // ISO date
  // [layers][q_heads][query_blocks()][words()]: bit b of a block of queries says whether block b of
  // rows is kept. None behind the one that the last query's token is in.
  std::vector<uint32_t> bits;

  // Shorter prompts have too little between their first and last blocks to be extended.
  static constexpr int64_t kLeastTokens = 6144;

  int64_t query_blocks() const { return tokens / query_rows; }
  int64_t words() const { return (tokens / ops::KeptBlocks::kRows + 31) / 32; }
  uint32_t* Of(int64_t layer, int64_t head, int64_t query_block) {
    return bits.data() + ((layer * q_heads + head) * query_blocks() + query_block) * words();
  }
  bool Keeps(int64_t layer, int64_t head, int64_t query_block, int64_t block) const {
    const int64_t row = (layer * q_heads + head) * query_blocks() + query_block;
    return (bits[static_cast<size_t>(row * words() + block / 32)] >> block % 32 & 1) != 0;
  }
  // `on_device`: the bits, if they are to be those of a copy.
  RecordedBlocks View(const uint32_t* on_device = nullptr) const;

  // The share of the blocks that a prompt of `prompt_tokens` tokens of a model with these layers
  // and heads keeps, among those that its queries see; blocks of 128 queries.
  double KeptShare(int64_t prompt_tokens, int64_t model_layers, int64_t model_heads) const;
  // Of the prompt recorded.
  double KeptShare() const { return KeptShare(tokens, layers, q_heads); }

  // "smollm2, 32256 tokens, 14.2% of the blocks kept for 99% of the attention, text
  // 0123456789abcdef".
  std::string Describe() const;

  // The file: "LCBLOCK1", the length of a JSON text (8 bytes, little endian), the text, then for
  // every head the bits that differ from those of the block of queries before, as gaps
  // (lab/trace/bit_stream.h).
  std::string Bytes() const;
  void Save(const std::filesystem::path& path) const;
  // Throws a FileError that names file and field.
  static BlockPatterns Load(const std::filesystem::path& path);
  static BlockPatterns Parse(std::span<const std::byte> file, const std::string& name);
};

}  // namespace litecache::lab
