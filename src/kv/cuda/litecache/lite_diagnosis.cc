// What tests look at of policy litecache on a GPU: which rows are cached, which query a head has
// kept.
#include <algorithm>

#include "kv/cuda/litecache/lite_cache.h"

namespace litecache::kv {

using ops::cuda::HeadState;

std::vector<int32_t> CudaLiteCache::CachedPositions(SequenceId id, int64_t layer, int64_t head) {
  const Shape& shape = tiers_.shape;
  const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  HeadState state;
  device_.Download(&state, Get(id).heads.as<HeadState>() + list, sizeof(state));
  const HeadSlots& slots = tiers_.slots.Get(id).heads[static_cast<size_t>(list)];
  const auto page_slots = static_cast<size_t>(shape.page_slots);
  std::vector<int32_t> all_positions, positions;
  std::vector<uint32_t> updates;
  for (size_t page = 0; page < slots.pages.size(); ++page) {
    all_positions.resize((page + 1) * page_slots);
    updates.resize((page + 1) * page_slots);
    device_.Download(all_positions.data() + page * page_slots,
                     tiers_.geometry.Positions(slots, static_cast<int64_t>(page)),
                     page_slots * sizeof(int32_t));
    device_.Download(updates.data() + page * page_slots,
                     tiers_.geometry.Updates(slots, static_cast<int64_t>(page)),
                     page_slots * sizeof(uint32_t));
  }
  for (int64_t i = 0; i < state.used; ++i) {
    const auto slot = static_cast<size_t>(shape.cache_begin() + i);
    if (updates.at(slot) == state.update) positions.push_back(all_positions[slot]);
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

std::vector<float> CudaLiteCache::Label(SequenceId id, int64_t layer, int64_t head) {
  const Shape& shape = tiers_.shape;
  const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  std::vector<float> label(static_cast<size_t>(shape.group * shape.layout.head_dim));
  device_.Download(label.data(), tiers_.slots.Label(tiers_.slots.Get(id), list),
                   label.size() * sizeof(float));
  return label;
}

}  // namespace litecache::kv
