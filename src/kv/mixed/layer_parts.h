// The layers of a model that are not all alike, in parts: those that attend the whole context,
// those that attend a window, and those that keep a state instead of rows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv::mixed {

// Layers that one cache holds, as the layers of a smaller model.
struct Part {
  Layout layout;                      // of the smaller model; without windows and states
  std::vector<int64_t> model_layers;  // [layout.layers], ascending
};

struct Parts {
  explicit Parts(const Layout& model);

  Part whole, window, recurrent;  // a part may have no layers
  // [layers]: the part that has the layer, and the layer's index there.
  std::vector<std::pair<Part Parts::*, int64_t>> places;
};

}  // namespace litecache::kv::mixed
