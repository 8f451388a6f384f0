// What tests look at of policy litecache on a GPU: which rows are cached, which query a head has
// kept.
#include <algorithm>

#include "kv/litecache/lite_cache_cuda.h"

namespace litecache::kv {

using ops::cuda::HeadState;

std::vector<int32_t> CudaLiteCache::CachedPositions(SequenceId id, int64_t layer, int64_t head) {
  const Shape& shape = tiers_.shape;
  const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
  LC_CHECK(list >= 0, "layer {} head {} is resident", layer, head);
  HeadState state;
  device_.Download(&state, Get(id).heads.as<HeadState>() + list, sizeof(state));
  const HeadSlots& slots = tiers_.slots.Get(id).heads[static_cast<size_t>(list)];
  const ops::cuda::CodeSlots& codes = shape.codes;
  const bool in_codes = codes.page_slots > 0;
  const int64_t a_page = in_codes ? codes.page_slots : shape.page_slots;
  const size_t row_bytes =
      in_codes ? 2 * static_cast<size_t>(shape.layout.head_dim) : shape.format.row_bytes();
  std::vector<int32_t> positions;
  // Of a page: positions, then updates.
  std::vector<int32_t> arrays(2 * static_cast<size_t>(a_page));
  int64_t last = -1;
  for (int64_t i = 0; i < state.used; ++i) {
    const int64_t slot = in_codes ? i : shape.CacheBegin() + i;
    const int64_t page = codes.first_page + slot / a_page;
    if (page != last) {
      const std::byte* bytes = slots.pages.at(static_cast<size_t>(page));
      device_.Download(arrays.data(), bytes + static_cast<size_t>(a_page) * row_bytes,
                       arrays.size() * sizeof(int32_t));
      last = page;
    }
    const auto in_page = static_cast<size_t>(slot % a_page);
    const auto update = static_cast<uint32_t>(arrays[static_cast<size_t>(a_page) + in_page]);
    if (update == state.update) positions.push_back(arrays[in_page]);
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
