// The rows that a real model's decode steps retrieved, recorded by `litecache-lab record`: for
// measurements at shapes with random weights, whose queries have no similarity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lab/namespaces.h"

namespace litecache::lab {

// A query of a step: the actual one (distance 0), or the one predicted from the input of the layer
// that is `distance` layers earlier.
struct TraceQuery {
  int64_t step = 0;
  int64_t distance = 0;
};

// L layers, Hq query heads, Hkv KV heads, S consecutive steps; step i was the token at position
// context - S + i of a text of `context` tokens.
struct Trace {
  int64_t layers = 0, q_heads = 0, kv_heads = 0;
  int64_t context = 0;
  int64_t steps = 0;
  double budget = 0;        // the most rows of a step, as a share of the tokens so far
  bool by_need = false;     // KvBudget::by_need: a step may have fewer
  std::string model;        // name of its directory
  std::string fingerprint;  // of its weights
  std::string text;         // description of the text
  std::string text_hash;    // of the text's tokens
  std::string retriever;    // selected the rows: "exact"
  std::string created;      // ISO date

  std::vector<float> importance;  // [L][Hq], in [0, 1]
  // Cosines of all pairs of steps' queries, in 1/kUnit: [L][Hq][S (S - 1) / 2], steps a > b at
  // a (a - 1) / 2 + b.
  std::vector<int8_t> cosines;
  // [1 + distances][L][Hkv][S]: the rows that a query selects, ascending positions in [0, context);
  // none where there is no such query.
  std::vector<std::vector<int32_t>> rows;

  // Predicted queries, from 1, ..., `distances` layers earlier, which is all that a cache can ask
  // for; layer l has those of distances up to l. They are compared with the queries of steps at
  // most `lags` away. Further ones differ from the actual query's as the furthest does: the
  // similarity of queries that far apart changes with the text, not with the prediction.
  //
  // A table holds, for each head, [S][2 lags + 1]: with the actual query of step a - lags + i; then
  // [S][lags]: with the predicted query of step a - 1 - i. Zeros where there is no such step.
  int64_t distances = 0, lags = 0;
  std::vector<int8_t> predicted_cosines;  // [distances][L][Hq][table], in 1/kUnit

  // [L][Hkv][S][ranked]: clusters of the keys by their estimated weight, the best first, ids in [0,
  // clusters). Those of RetroInfer with one segment; 0 clusters: not recorded.
  int64_t clusters = 0, ranked = 0;
  std::vector<uint16_t> cluster_ids;

  static constexpr int kUnit = 127;

  int64_t group() const { return q_heads / kv_heads; }
  size_t pairs() const { return static_cast<size_t>(steps * (steps - 1) / 2); }
  // Of actual queries; 1 for a step and itself.
  float Cosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const;
  // Of any two queries that are actual or predicted from the same layer. A query's distance is at
  // most `distances` and at most the layer.
  float Cosine(int64_t layer, int64_t q_head, TraceQuery a, TraceQuery b) const;

  const std::vector<int32_t>& Rows(int64_t layer, int64_t kv_head, TraceQuery q) const {
    return rows[static_cast<size_t>(((q.distance * layers + layer) * kv_heads + kv_head) * steps +
                                    q.step)];
  }
  const std::vector<int32_t>& Rows(int64_t layer, int64_t kv_head, int64_t step) const {
    return Rows(layer, kv_head, TraceQuery{step, 0});
  }
  std::span<const uint16_t> Clusters(int64_t layer, int64_t kv_head, int64_t step) const {
    return std::span(cluster_ids)
        .subspan(static_cast<size_t>(((layer * kv_heads + kv_head) * steps + step) * ranked),
                 static_cast<size_t>(ranked));
  }

  // The two queries that a table's entry i compares, of any distance but 0; false if a step is
  // missing.
  int64_t table_size() const { return steps * (3 * lags + 1); }
  bool TableEntry(int64_t i, int64_t distance, TraceQuery* a, TraceQuery* b) const;
  // Whether there are queries of this distance for the layer of row set [L][Hkv][S].
  bool Predicts(size_t distance, size_t set) const {
    return set / static_cast<size_t>(kv_heads * steps) >= distance;
  }
  // An entry of a table without a prediction, in 1/kUnit: what the actual queries have.
  int ActualCosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const;

  // "litecache-demo-16m, 48 steps at 4096 tokens, text 0123456789abcdef".
  std::string Describe() const;

  // The file (trace_file.cc): "LCTRACE1", the length of a JSON text (8 bytes, little endian), the
  // text, importance (f32), then bits (bit_stream.h): of each head cosines, rows and clusters;
  // actual queries' rows as the changes from one step to the next, predicted ones' rows and cosines
  // as differences from the actual ones'.
  std::string Bytes() const;
  void Save(const std::filesystem::path& path) const;
  // Throws a FileError that names file and field.
  static Trace Load(const std::filesystem::path& path);
  static Trace Parse(std::span<const std::byte> file, const std::string& name);

 private:
  // An entry of a table, corrected for steps that are too far apart; `actual`: as ActualCosine().
  template <class Actual>
  int Entry(const int8_t* table, TraceQuery a, TraceQuery b, const Actual& actual) const;
};

// Number of positions in both of two ascending lists.
int64_t CommonRows(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace litecache::lab
