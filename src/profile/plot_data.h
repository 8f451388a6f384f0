// The data of a profile's figures as JSON, for tools/plot_profile.py.
#pragma once

#include <nlohmann/json.hpp>

#include "profile/profiler.h"

namespace litecache::profile {

// keep: the share of the attention mass to which the thresholds are fitted.
//   layers, q_heads, kv_heads, keep
//   importance [layers][q_heads] or empty, similarity, thresholds, hits [layers][kv_heads]
//   curves: threshold [points]; kept, hits, kept_predicted, hits_predicted
//     [layers][kv_heads][points]
//   similarity_maps: layer, q_head, steps, cosine [steps][steps] of each
//   overlap: [layer, similarity of two steps' queries, share of their top rows in common] of each
//     pair
// Arrays are flat, their values rounded to four decimals.
nlohmann::ordered_json PlotData(const ProfilerResult& result, double keep);

}  // namespace litecache::profile
