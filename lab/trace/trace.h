// The rows that a real model's decode steps retrieved, recorded by `litecache-lab record`: for
// measurements at shapes with random weights, whose queries have no similarity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace litecache::kv {

// L layers, Hq query heads, Hkv KV heads, S consecutive steps; step i was the token at position
// context - S + i of a text of `context` tokens.
struct Trace {
  int64_t layers = 0, q_heads = 0, kv_heads = 0;
  int64_t context = 0;
  int64_t steps = 0;
  double budget = 0;        // rows of a step, as a share of the tokens so far
  std::string model;        // name of its directory
  std::string fingerprint;  // of its weights
  std::string text;         // description of the text
  std::string text_hash;    // of the text's tokens
  std::string retriever;    // selected the rows: "exact"
  std::string created;      // ISO date

  std::vector<float> importance;  // [L][Hq], in [0, 1]
  // Cosines of all pairs of steps' queries, in 1/127: [L][Hq][S (S - 1) / 2], steps a > b at
  // a (a - 1) / 2 + b.
  std::vector<int8_t> cosines;
  // [L][Hkv][S]: the rows a step needed, ascending positions in [0, context).
  std::vector<std::vector<int32_t>> rows;
  // [L][Hkv][S][ranked]: clusters of the keys by their estimated weight, the best first, ids in [0,
  // clusters). Those of RetroInfer with one segment; 0 clusters: not recorded.
  int64_t clusters = 0, ranked = 0;
  std::vector<uint16_t> cluster_ids;

  int64_t group() const { return q_heads / kv_heads; }
  size_t pairs() const { return static_cast<size_t>(steps * (steps - 1) / 2); }
  // 1 for a step and itself.
  float Cosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const;
  const std::vector<int32_t>& Rows(int64_t layer, int64_t kv_head, int64_t step) const {
    return rows[static_cast<size_t>((layer * kv_heads + kv_head) * steps + step)];
  }
  std::span<const uint16_t> Clusters(int64_t layer, int64_t kv_head, int64_t step) const {
    return std::span(cluster_ids)
        .subspan(static_cast<size_t>(((layer * kv_heads + kv_head) * steps + step) * ranked),
                 static_cast<size_t>(ranked));
  }

  // "litecache-demo-16m, 48 steps at 4096 tokens, text 0123456789abcdef".
  std::string Describe() const;

  // A file: "LCTRACE1", the length of a JSON text (8 bytes, little endian), the text, then
  // importance (f32), cosines (int8), rows and clusters (2 bytes per id). Rows: for each head, step
  // after step, the number of positions that differ from the previous step, and the gaps between
  // them, 7 bits per byte.
  std::string Bytes() const;
  void Save(const std::filesystem::path& path) const;
  // Throws a FileError that names file and field.
  static Trace Load(const std::filesystem::path& path);
  static Trace Parse(std::span<const std::byte> file, const std::string& name);
};

}  // namespace litecache::kv
