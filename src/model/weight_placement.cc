#include "model/weight_placement.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kv/offload/shape.h"

namespace litecache::model {

static_assert(kProjectionPlaces > kv::offload::Shape::kGpuBuffers,
              "kvpr projects rows for all of its buffers while a layer attends");

WeightPlacement WeightPlacement::Of(int64_t layers, double on_device) {
  LC_CHECK(layers > 0 && on_device >= 0 && on_device <= 1, "{} of {} layers", on_device, layers);
  return {layers, layers - std::llround(on_device * static_cast<double>(layers))};
}

WeightPlacement WeightPlacement::Of(const ModelConfig& config, double on_device) {
  const WeightPlacement placement = Of(config.layers, on_device);
  if (placement.offloaded == 0 || config.recurrent.empty()) return placement;
  throw Unsupported(
      "weights_on_device = {}: the weights of a model with recurrent layers stay on the device; "
      "leave it at 100%",
      on_device);
}

int64_t WeightPlacement::LayersAhead() const {
  int64_t ahead = layers;
  for (int64_t first = 0; first < layers; ++first) {
    // `end` becomes the first layer that has no buffer while `first` attends.
    int64_t end = first, travelling = 0;
    while (end < layers && travelling + (Offloads(end) ? 1 : 0) <= kProjectionPlaces) {
      travelling += Offloads(end++) ? 1 : 0;
    }
    if (end < layers) ahead = std::min(ahead, end - 1 - first);
  }
  return ahead;
}

void CheckExperts(const ModelConfig& config, double experts_on_device) {
  if (experts_on_device == 1 || config.experts.count > 0) return;
  throw InvalidArgument("experts_on_device = {}: the model has no experts", experts_on_device);
}

void CheckLayersAhead(const WeightPlacement& placement, int64_t ahead) {
  if (ahead <= placement.LayersAhead()) return;
  throw Unsupported(
      "prefetch = {} with {} of {} layers' weights in host memory: projections are available "
      "at most {} layers ahead of the layer that attends; use prefetch = {}, or raise "
      "weights_on_device",
      ahead, placement.offloaded, placement.layers, placement.LayersAhead(),
      placement.LayersAhead());
}

}  // namespace litecache::model
