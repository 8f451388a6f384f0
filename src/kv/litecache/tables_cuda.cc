#include "kv/litecache/tables_cuda.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace litecache::kv {
namespace {

using ops::cuda::LiteCacheLayer;

// Appends arrays to one block of device memory.
class ConstantsBuilder {
 public:
  template <typename T>
  size_t Add(std::span<const T> values) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + values.size_bytes());
    std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  Buffer Upload(Device& device) const {
    Buffer memory = device.Allocate(std::max<size_t>(bytes_.size(), 16));
    device.Upload(memory.data(), bytes_.data(), bytes_.size());
    return memory;
  }

 private:
  std::vector<std::byte> bytes_;
};

// Offsets of a layer's arrays in the block.
struct Offsets {
  size_t offloaded, resident, metadata, staging[2], dense, tau, importance;
};

Offsets AddLayer(const Shape& shape, const HeadPlan& plan, int64_t layer,
                 ConstantsBuilder* builder) {
  const Layout& layout = shape.layout;
  const auto heads = static_cast<size_t>(layout.kv_heads);
  std::vector<int32_t> offloaded(heads), resident(heads), metadata(heads), staging(heads, -1),
      next_staging(heads, -1), dense(heads);
  std::vector<float> tau(heads);
  int32_t staged = 0;
  for (size_t h = 0; h < heads; ++h) {
    const auto index = static_cast<size_t>(shape.Index(layer, static_cast<int64_t>(h)));
    const HeadSettings& settings = plan.at(layer, static_cast<int64_t>(h));
    offloaded[h] = static_cast<int32_t>(shape.offloaded_list[index]);
    resident[h] = static_cast<int32_t>(shape.resident_list[index]);
    metadata[h] = static_cast<int32_t>(shape.metadata_list[index]);
    if (offloaded[h] >= 0) {
      staging[h] = staged++;
      next_staging[h] = staging[h] + static_cast<int32_t>(shape.max_offloaded_in_layer);
    }
    dense[h] = settings.dense;
    tau[h] = settings.tau;
  }
  const std::span<const float> importance(plan.importance.data() + layer * layout.q_heads,
                                          static_cast<size_t>(layout.q_heads));
  return {builder->Add<int32_t>(offloaded),
          builder->Add<int32_t>(resident),
          builder->Add<int32_t>(metadata),
          {builder->Add<int32_t>(staging), builder->Add<int32_t>(next_staging)},
          builder->Add<int32_t>(dense),
          builder->Add<float>(tau),
          builder->Add<float>(importance)};
}

LiteCacheLayer LayerAt(const Shape& shape, const Offsets& at, const std::byte* memory) {
  const auto ints = [&](size_t offset) {
    return reinterpret_cast<const int32_t*>(memory + offset);
  };
  const auto floats = [&](size_t offset) {
    return reinterpret_cast<const float*>(memory + offset);
  };
  LiteCacheLayer l;
  l.slots = {.table = ops::cuda::kSlots,
             .lists = static_cast<int32_t>(shape.offloaded),
             .page_rows = static_cast<int32_t>(shape.page_slots),
             .format = shape.format,
             .sink = static_cast<int32_t>(shape.sink),
             .ring = static_cast<int32_t>(shape.RingSlots()),
             .list_of_head = ints(at.offloaded)};
  l.codes = shape.codes;
  l.store = {.table = ops::cuda::kStore,
             .lists = static_cast<int32_t>(shape.offloaded),
             .page_rows = static_cast<int32_t>(shape.store_page_tokens),
             .format = shape.store_format,
             .list_of_head = ints(at.offloaded),
             .scales_page_rows = static_cast<int32_t>(shape.ScalesTable().page_tokens)};
  l.resident = {.table = ops::cuda::kResident,
                .lists = static_cast<int32_t>(shape.resident),
                .page_rows = static_cast<int32_t>(shape.pages.page_tokens),
                .format = shape.format,
                .list_of_head = ints(at.resident)};
  l.metadata = {.table = ops::cuda::kMetadata,
                .lists = static_cast<int32_t>(shape.metadata),
                .page_rows = static_cast<int32_t>(std::max<int64_t>(shape.metadata_tokens, 1)),
                .format = shape.format,
                .list_of_head = ints(at.metadata)};
  l.importance = floats(at.importance);
  l.tau = floats(at.tau);
  l.dense = ints(at.dense);
  return l;
}

}  // namespace

LiteCacheTables MakeLiteTables(Device& device, const Shape& shape, const HeadPlan& plan) {
  ConstantsBuilder builder;
  std::vector<Offsets> offsets;
  for (int64_t layer = 0; layer < shape.layout.layers; ++layer) {
    offsets.push_back(AddLayer(shape, plan, layer, &builder));
  }
  LiteCacheTables tables{.memory = builder.Upload(device), .layers = {}, .staging_lists = {}};
  const auto* memory = tables.memory.as<const std::byte>();
  for (const Offsets& at : offsets) {
    tables.layers.push_back(LayerAt(shape, at, memory));
    for (const size_t set : {0, 1}) {
      tables.staging_lists[set].push_back(
          reinterpret_cast<const int32_t*>(memory + at.staging[set]));
    }
  }
  return tables;
}

}  // namespace litecache::kv
