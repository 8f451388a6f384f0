// Each KV head's role (offloaded or resident) and reuse threshold, decided once at start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/cache.h"
#include "kv/heads/profile.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

struct HeadSettings {
  bool resident = false;  // all its KV rows stay on the device
  bool dense = false;     // resident, and attends every row
  float tau = 0;          // reuse threshold; hit <=> similarity > tau
  float difficulty = 0;   // D of CLO eq. 11
};

struct HeadPlan {
  int64_t layers = 0, kv_heads = 0;
  std::vector<HeadSettings> heads;  // [layers][kv_heads]
  std::vector<float> importance;    // [layers][q_heads]
  std::vector<int64_t> sources;     // [layers]: PredictionSources()
  std::string thresholds;           // the source, with "auto" resolved: fitted, importance, fixed
  std::string remark;               // for the user: assumptions made without a profile; or empty

  const HeadSettings& at(int64_t layer, int64_t head) const {
    return heads[static_cast<size_t>(layer * kv_heads + head)];
  }
  int64_t resident_count() const;
  // Whether any of the layer's resident heads attends a selection, and how many layers have one.
  bool ResidentsSelect(int64_t layer) const;
  int64_t selecting_layers() const;
};

// Whether resident_heads is auto and the policy litecache: whoever knows the room there is decides.
bool ResidentByRoom(const KvOptions& options);
// What auto stands for where all rows stay on a GPU.
KvOptions KeptOnDevice(KvOptions options);

// CLO eq. 3-5: tau = cos(s^p acos(eta) + (1 - s^p) pi), s clipped to [0, 1].
float AdaptiveThreshold(double importance, double eta, double p);

// Importance of a KV head: the largest of its query heads', because rows that one query head needs
// must be right.
float GroupImportance(const float* importance, int64_t group);

// profile may be null: then importance is 1 for all heads and similarity unknown. sources:
// PredictionSources(); empty: no layer is predicted. topk_bytes: bytes of one head's cached rows
// (S_topk of CLO eq. 12). Throws InvalidArgument for settings that need a profile if there is none;
// the message names `litecache profile`.
HeadPlan MakeHeadPlan(const Layout& layout, const KvOptions& options, const Profile* profile,
                      std::vector<int64_t> sources, uint64_t topk_bytes);

// Offloads the resident head with the lowest reuse difficulty, except heads of the first
// dense_layers layers. False if there is none.
bool OffloadEasiest(int64_t dense_layers, HeadPlan* plan);

}  // namespace litecache::kv
