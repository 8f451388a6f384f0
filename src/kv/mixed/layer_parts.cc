#include "kv/mixed/layer_parts.h"

#include "base/error.h"

namespace litecache::kv::mixed {

Parts::Parts(const Layout& model) {
  const auto of_all = [&](const std::vector<bool>& layers) {
    return layers.empty() || static_cast<int64_t>(layers.size()) == model.layers;
  };
  LC_CHECK(of_all(model.windowed) && of_all(model.recurrent) && !model.uniform());
  LC_CHECK(model.windowed.empty() || model.window > 0);
  for (Part* part : {&whole, &window, &recurrent}) {
    part->layout = model;
    part->layout.layers = 0;
    part->layout.window = 0;
    part->layout.windowed.clear();
    part->layout.recurrent.clear();
  }
  if (model.window_kv_heads > 0) window.layout.kv_heads = model.window_kv_heads;
  if (model.window_head_dim > 0) window.layout.head_dim = model.window_head_dim;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    Part Parts::*place = &Parts::whole;
    if (!model.windowed.empty() && model.windowed[index]) place = &Parts::window;
    if (!model.recurrent.empty() && model.recurrent[index]) place = &Parts::recurrent;
    Part& part = this->*place;
    places.emplace_back(place, part.layout.layers++);
    part.model_layers.push_back(layer);
  }
}

}  // namespace litecache::kv::mixed
