// Measures a model on texts: all contents of the file that `litecache profile` writes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "kv/heads/profile.h"
#include "model/decoder.h"
#include "profile/hata_training.h"
#include "profile/plots.h"
#include "profile/recall.h"
#include "profile/threshold_curves.h"

namespace litecache::profile {

struct ProfilerOptions {
  CurveOptions curves;
  int64_t steps = 512;   // last positions of a window, treated as decode steps
  int64_t held_out = 2;  // windows used to measure retrievers and not to train them
  std::vector<int64_t> hata_bits = {128, 256};  // empty: no weights
  HataOptions hata;
  double hata_top_share = 0.1;
  int64_t hata_queries = 64;  // random positions of a window's later half
  int64_t hata_keys = 2048;   // random positions of a window
  // [layers][q_heads]; empty: not measured. Lookups then weigh all heads alike, and the profile
  // stores none.
  std::vector<float> importance;
  int64_t chunk = 512;  // tokens per pass
  uint64_t seed = 1;
};

// Recall with the curves' budget on held-out windows, for each KV head [layers][kv_heads].
struct RetrieverRecall {
  std::string name;  // "hata-128", "hata-128 random", "loki-16"
  std::vector<double> heads;
  double mean() const;
};

struct ProfilerResult {
  kv::Profile profile;
  std::vector<RetrieverRecall> recall;
  Plots plots;
  std::vector<std::pair<std::string, double>> phases;  // name, seconds
  int64_t windows = 0;
  int64_t lookups = 0;  // simulated, per head and threshold
};

// windows: token ids, each longer than `steps`. The last `held_out` of them are not used for
// training (fewer if there are few windows, never the only one). progress(share done, what) may
// throw to cancel. The caller sets the profile's fingerprint, corpus and created. Throws
// InvalidArgument for options that cannot be satisfied, and what the decoder throws.
ProfilerResult MeasureProfile(
    Device& device, Stream& stream, model::Decoder& decoder,
    const std::vector<std::vector<int32_t>>& windows, const ProfilerOptions& options,
    const std::function<void(double share, const std::string& what)>& progress);

}  // namespace litecache::profile
