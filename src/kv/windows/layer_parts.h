// The layers of a model with sliding windows, in two parts: those that attend the whole context,
// and those that attend a window.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv::windows {

// Layers that one cache holds, as the layers of a smaller model.
struct Part {
  Layout layout;                      // of the smaller model; without windows
  std::vector<int64_t> model_layers;  // [layout.layers], ascending
};

struct Parts {
  explicit Parts(const Layout& model);

  Part whole, window;  // a part may have no layers
  // [layers]: whether the layer is of `window`, and its index there or in `whole`.
  std::vector<std::pair<bool, int64_t>> places;
};

}  // namespace litecache::kv::windows
