// What tools/plot_profile.py shows besides the profile's own arrays.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kv/cache.h"
#include "profile/recording.h"
#include "profile/similarity.h"
#include "profile/threshold_curves.h"

namespace litecache::profile {

struct Plots {
  struct HeatMap {
    int64_t layer = 0, q_head = 0, steps = 0;
    std::vector<float> cosine;  // [steps][steps]
  };
  struct Pair {
    float similarity = 0;  // of two steps' queries of a KV head's group, aggregated
    float overlap = 0;     // share of the exact top-k rows that both have
    int64_t layer = 0;
  };
  std::vector<HeatMap> heat_maps;
  std::vector<Pair> pairs;
};

// How similar the queries of a window's steps are to one another, for a few query heads spread over
// the layers.
std::vector<Plots::HeatMap> MakeHeatMaps(const Recording& recording, const kv::Layout& layout);

// Adds up to `count` pairs of a KV head's steps, at random distances that are powers of two.
void AddPairs(const HeadRecording& head, const StepSets& sets, ops::Aggregation aggregation,
              int64_t layer, int64_t count, std::mt19937_64& random,
              std::vector<Plots::Pair>* pairs);

}  // namespace litecache::profile
