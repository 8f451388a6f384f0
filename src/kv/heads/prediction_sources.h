// Which layer's input predicts the queries of which layer.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

// [layers]: the layer from whose input a layer's queries are predicted, an earlier one; -1: the
// layer looks up with its own query. By options.prefetch, a number of layers: that many earlier, or
// layer 0. auto on a GPU: two layers earlier, but not before layer 2, because the input of the
// first two layers predicts nothing (SmolLM2: cosine -0.06 to 0.24, and 0.92 to 0.98 from layer 2
// on, lab/notes/accuracy.md); on a CPU none, because nothing overlaps with a layer there.
std::vector<int64_t> PredictionSources(const KvOptions& options, int64_t layers, DeviceType device);

// The largest distance between a layer and its source; 0: no layer is predicted.
int64_t LayersAhead(const std::vector<int64_t>& sources);

}  // namespace litecache::kv
