// What `litecache profile` measures of a model, for the KV policies.
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

// L layers, Hq query heads, Hkv KV heads, d head_dim; arrays are row-major, empty where not
// measured.
struct Profile {
  int64_t layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  std::string fingerprint;  // of the model (config and weights); checked on load

  // Mean cosine of adjacent steps' queries.
  std::vector<float> similarity;    // [L][Hkv], aggregated by importance (eq. 2)
  std::vector<float> similarity_q;  // [L][Hq]
  std::vector<float> importance;    // [L][Hq], in [0, 1]

  // What a threshold keeps: simulated QSAC on the corpus. kept: the attention mass of the rows held
  // over that of freshly retrieved exact top-k rows; hits: share of lookups that hit.
  std::vector<float> tau_grid;                        // [G] ascending
  std::vector<float> kept, hits;                      // [L][Hkv][G], lookups with the actual query
  std::vector<float> kept_predicted, hits_predicted;  // the same with predicted queries
  double curve_budget = 0;    // share of the context that was kept in the simulation
  int64_t curve_context = 0;  // tokens of context it ended at

  std::map<int, std::vector<float>> hata;  // bits -> [L][Hkv][d][bits]
  std::vector<float> loki;                 // [L][Hkv][d][d]: column c is component c
  std::vector<float> skew;                 // [L][Hkv][d][d]: column c is channel c

  double layer_seconds = 0;          // a decode step's compute of one layer, batch 1
  double link_bytes_per_second = 0;  // host store to device cache

  std::string corpus;   // for people: what it was measured on
  std::string created;  // ISO date

  // Lowest threshold of the grid at which the head keeps `keep` of its mass and every higher one
  // does too; 1 (always refresh) where none does.
  float FittedThreshold(int64_t layer, int64_t head, double keep, bool predicted) const;

  // The same threshold with what its curve promises: share of lookups that hit, mass kept.
  struct Fit {
    float tau = 1;
    double hits = 0;
    double kept = 1;
  };
  Fit FitThreshold(int64_t layer, int64_t head, double keep, bool predicted) const;

  // One safetensors file: a tensor a field (hata.128, ...), the other fields as JSON text in its
  // metadata. hata, loki and skew are kept in f16, the rest in f32. Save throws InvalidArgument for
  // values that are not finite; Load and Parse throw FileError naming file and field.
  void Save(const std::filesystem::path& path) const;
  static Profile Load(const std::filesystem::path& path);
  // Of a file's bytes; `name` starts messages.
  static Profile Parse(std::span<const std::byte> file, const std::string& name);
  // Throws FileError when the profile is not this model's.
  void CheckModel(const Layout& layout, const std::string& model_fingerprint,
                  const std::filesystem::path& path) const;
};

// DuoAttention's table: a row a layer, a column a KV head (or a query head), values clipped to
// [0, 1]. Returns [L][Hq]: a query head takes its KV head's value. Throws FileError naming line and
// column for a table that is not this model's.
std::vector<float> ReadImportanceTable(const std::filesystem::path& path, const Layout& layout);

}  // namespace litecache::kv
