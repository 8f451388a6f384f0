// Which layer's input predicts the queries of which layer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// [layers]: the layer from whose input a layer's queries are predicted, an earlier one; -1: the
// layer looks up with its own query. By options.prefetch:
//   off, 0, on, 1 ... 4   that many layers earlier, or layer 0
//   -,-,0,1,...           one entry a layer, '-' for none; throws InvalidArgument for another
//   number
//                         of layers
//   auto                  on a CPU none, because nothing overlaps with a layer there; on a GPU the
//                         layer before, from layer 3 on: the input of the first two layers predicts
//                         nothing (SmolLM2: cosines of -0.06 to 0.24, and of 0.94 to 0.99 from
//                         layer 2 on, lab/notes/predictions.md)
std::vector<int64_t> PredictionSources(const KvOptions& options, int64_t layers, DeviceType device);

// What auto stands for where predictions have been measured: for every layer the farthest source,
// at most two layers earlier, whose predictions have a mean cosine of at least kWantedCosine[d - 1]
// with the true queries. cosines[d - 1][layer]: of layer's queries and their predictions d layers
// earlier. Sources never descend. A correction takes 100 to 200 us of its layer, so a second layer
// has to be predicted almost as well as a first (lab/notes/gpu/litecache.md). With predictions of
// lower cosines the shipped model loses needles, checked or not (lab/notes/accuracy.md).
inline constexpr float kWantedCosine[] = {0.94f, 0.97f};
std::vector<int64_t> MeasuredSources(std::span<const std::vector<float>> cosines);

// The value of KvOptions::prefetch for sources.
std::string SourcesText(std::span<const int64_t> sources);
// Checks a value of KvOptions::prefetch; `who` starts the error. Throws InvalidArgument.
void CheckPrefetch(const std::string& text, std::string_view who);

// The largest distance between a layer and its source; 0: no layer is predicted.
int64_t LayersAhead(std::span<const int64_t> sources);

}  // namespace litecache::kv
