#include "kv/windows/layer_parts.h"

#include "base/error.h"

namespace litecache::kv::windows {

Parts::Parts(const Layout& model) {
  LC_CHECK(model.window > 0 && static_cast<int64_t>(model.windowed.size()) == model.layers);
  for (Part* part : {&whole, &window}) {
    part->layout = model;
    part->layout.layers = 0;
    part->layout.window = 0;
    part->layout.windowed.clear();
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const bool in_window = model.windowed[static_cast<size_t>(layer)];
    Part& part = in_window ? window : whole;
    places.emplace_back(in_window, part.layout.layers++);
    part.model_layers.push_back(layer);
  }
}

}  // namespace litecache::kv::windows
