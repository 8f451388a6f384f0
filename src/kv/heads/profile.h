// A model's measurements by `litecache profile`, for the KV policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv {

// L layers, Hq query heads, Hkv KV heads, d head_dim. Arrays are row-major, and empty if not
// measured.
struct Profile {
  int64_t layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::string fingerprint;  // of the model (config and weights); checked on load

  // Mean cosine similarity of the queries of adjacent steps.
  std::vector<float> similarity;    // [L][Hkv], aggregated by importance (eq. 2)
  std::vector<float> similarity_q;  // [L][Hq]
  std::vector<float> importance;    // [L][Hq], in [0, 1]

  // The effect of each threshold, by simulating QSAC on the corpus. kept: attention mass of the
  // cached rows relative to that of freshly retrieved exact top-k rows; hits: share of lookups that
  // hit.
  std::vector<float> tau_grid;                        // [G] ascending
  std::vector<float> kept, hits;                      // [L][Hkv][G], lookups with the actual query
  std::vector<float> kept_predicted, hits_predicted;  // the same with predicted queries
  double curve_budget = 0;    // the simulation's row budget as a share of the context
  int64_t curve_context = 0;  // the context at the simulation's end, in tokens

  std::map<int, std::vector<float>> hata;  // bits -> [L][Hkv][d][bits]
  std::vector<float> loki;                 // [L][Hkv][d][d]: column c is component c
  std::vector<float> skew;                 // [L][Hkv][d][d]: column c is channel c

  double layer_seconds = 0;          // a decode step's compute of one layer, batch 1
  double link_bytes_per_second = 0;  // host store to device cache

  std::string corpus;   // the measurement's corpus, for the user
  std::string created;  // ISO date

  // The lowest threshold of the grid from which on, at it and every higher one, the head keeps
  // `keep` of its mass; 1 (always refresh) if there is none.
  float FittedThreshold(int64_t layer, int64_t head, double keep, bool predicted) const;

  // The same threshold with its predicted values: share of lookups that hit, and mass kept.
  struct Fit {
    float tau = 1;
    double hits = 0;
    double kept = 1;
  };
  Fit FitThreshold(int64_t layer, int64_t head, double keep, bool predicted) const;

  // A profile is one safetensors file: one tensor a field (hata.128, ...), other fields as JSON
  // text in its metadata. hata, loki and skew are stored as f16, the rest as f32. Save throws
  // InvalidArgument for non-finite values; Load and Parse throw FileError naming file and field.
  void Save(const std::filesystem::path& path) const;
  static Profile Load(const std::filesystem::path& path);
  // Parses the bytes of a file; `name` starts error messages.
  static Profile Parse(std::span<const std::byte> file, const std::string& name);
  // Throws FileError if the profile belongs to another model.
  void CheckModel(const Layout& layout, const std::string& model_fingerprint,
                  const std::filesystem::path& path) const;
};

// A range of a model's heads, in query heads and KV heads.
struct HeadRange {
  int64_t first_q = 0, q_heads = 0, first_kv = 0, kv_heads = 0;
};
// The profile of these heads alone.
Profile ProfileOf(const Profile& profile, const HeadRange& heads);

// Reads DuoAttention's table: one row a layer, one column a KV head (or query head), values clipped
// to [0, 1]. Returns [L][Hq]; a query head takes its KV head's value. Throws FileError naming line
// and column if the table does not fit the model.
std::vector<float> ReadImportanceTable(const std::filesystem::path& path, const Layout& layout);

}  // namespace litecache::kv
