// Which layers' matrices stay in host memory and travel in every step, and what that takes.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/config.h"

namespace litecache::model {

// Where in a layer a matrix is needed; what travels comes in this order. Keys and values first:
// policy kvpr recomputes rows while the rest is under way.
enum class LayerPart { kKeyValue, kQuery, kRest };
inline constexpr int kLayerParts = 3;

struct LayerPlace {
  int64_t layer = 0;
  LayerPart part = LayerPart::kRest;
};

// A layer has two places on the device that other layers use after it: that of its projections to
// queries, keys and values, and that of the rest. Four of the former, because kvpr projects up to
// three layers ahead of the layer that attends, one for each of its staging buffers. Queries
// predicted further ahead would want more of them, and bring nothing: what the link is busy with
// are weights.
inline constexpr int kProjectionPlaces = 4, kRestPlaces = 2;

struct WeightPlacement {
  int64_t layers = 0;
  int64_t offloaded = 0;  // of them, spread evenly: others compute while one of them travels

  // on_device: the share of the layers whose matrices stay on the device, in [0, 1].
  static WeightPlacement Of(int64_t layers, double on_device);
  bool Offloads(int64_t layer) const {
    return (layer + 1) * offloaded / layers > layer * offloaded / layers;
  }
  // Most layers ahead of the one that attends that projections can be asked for: all that travel
  // among so many layers have a place.
  int64_t LayersAhead() const;
};

// Throws Unsupported where `ahead` is more, naming the options.
void CheckLayersAhead(const WeightPlacement& placement, int64_t ahead);

struct WeightBytes {
  uint64_t device = 0;
  uint64_t host = 0;
};
// Of a model whose weights have this dtype. Embeddings, logits, norms and biases stay on the
// device, beside the places of layers that travel.
WeightBytes EstimateWeights(const ModelConfig& config, DType dtype, double on_device);

}  // namespace litecache::model
