// Which layers' matrices stay in host memory and are copied in every step, and their memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/weight_types.h"

namespace litecache::model {

// The part of a layer that a matrix belongs to; parts are copied in this order. Keys and values
// come first: policy kvpr recomputes rows while the rest is being copied.
enum class LayerPart { kKeyValue, kQuery, kRest };
inline constexpr int kLayerParts = 3;

struct LayerPlace {
  int64_t layer = 0;
  LayerPart part = LayerPart::kRest;
};

// Offloaded layers share buffers ("places") on the device in turn, of two kinds: one for the
// projections to queries, keys and values, and one for the rest of a layer. There are four places
// for projections, because kvpr projects up to three layers ahead of the layer that attends, one
// for each of its staging buffers. Predicting queries further ahead would need more places and gain
// nothing: the link is busy with weights.
inline constexpr int kProjectionPlaces = 4, kRestPlaces = 2;
inline constexpr int kMostPlaces = std::max(kProjectionPlaces, kRestPlaces);
constexpr int PlacesOf(LayerPart part) {
  return part == LayerPart::kRest ? kRestPlaces : kProjectionPlaces;
}

struct WeightPlacement {
  int64_t layers = 0;
  int64_t offloaded = 0;  // layers, spread evenly: one is copied while others compute

  // on_device: the share of the layers whose matrices stay on the device, in [0, 1].
  static WeightPlacement Of(int64_t layers, double on_device);
  // The same for a model's. Throws Unsupported for recurrent layers.
  static WeightPlacement Of(const ModelConfig& config, double on_device);
  bool Offloads(int64_t layer) const {
    return (layer + 1) * offloaded / layers > layer * offloaded / layers;
  }
  // The most layers ahead of the attending one whose projections can be awaited: all offloaded
  // layers in that span have a place.
  int64_t LayersAhead() const;
};

// Throws InvalidArgument if experts_on_device is set for a model without experts.
void CheckExperts(const ModelConfig& config, double experts_on_device);

// Throws Unsupported, naming the options, if `ahead` exceeds LayersAhead().
void CheckLayersAhead(const WeightPlacement& placement, int64_t ahead);

struct WeightBytes {
  uint64_t device = 0;
  uint64_t host = 0;
};
// What stays on the device: a share of the layers, and of the experts of each layer.
struct WeightShares {
  double layers = 1, experts = 1;
};
// For a model whose matrices have these types. Embeddings, logits, norms and biases stay on the
// device, beside the places of offloaded layers. gpu: as a GPU holds them.
WeightBytes EstimateWeights(const ModelConfig& config, const WeightTypes& types,
                            const WeightShares& shares, bool gpu);

// What places hold: the bytes of each matrix of a part, in the order in which decoders take them.
// The i-th matrices of layers that share a place share its memory, whatever they are, so that it is
// as large as the largest: dense layers have others than layers with experts.
struct PlaceBytes {
  std::vector<uint64_t> matrices[kLayerParts][kMostPlaces];

  // ordinal: of a layer among the offloaded ones.
  std::vector<uint64_t>& Of(LayerPart part, int64_t ordinal) {
    return matrices[static_cast<int>(part)][ordinal % PlacesOf(part)];
  }
};
// On a GPU.
PlaceBytes EstimatePlaces(const ModelConfig& config, const WeightTypes& types,
                          const WeightShares& shares);

}  // namespace litecache::model
