// The two tiers of policy litecache with their page tables, and a step's sequences as a layer's
// operations see them.
#pragma once

#include <cstdint>

#include "kv/heads/head_plan.h"
#include "kv/litecache/head_slots_cpu.h"
#include "kv/litecache/shape.h"
#include "kv/litecache/slot_table.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"

namespace litecache::kv {

// All device memory comes from one pool and all host memory from another, so budgets hold by
// construction. The tables give out the same ids. Lengths: resident has all of a sequence's tokens;
// store, metadata and scales have the stored ones: all of a prompt and of drafted chunks, and
// generated tokens once they have left the recent window. Metadata has less where tokens were taken
// back from within one of its units, until the next step.
struct Tiers {
  // d: the device tier's memory; h: the host store's.
  Tiers(Device& d, Device& h, const Shape& s, const HeadPlan& p, const TierBytes& budget)
      : shape(s),
        plan(p),
        geometry{s.format, s.page_slots, s.CacheBegin()},
        device(d, s.pages.page_bytes, budget.device, "KV cache, device tier"),
        host(h, s.store_page_bytes, budget.host, "KV cache, host store",
             &h == &d ? PagePool::kSlabBytes : kPinnedSlabBytes),
        store(shape.StoreTable(), host),
        resident(shape.ResidentTable(), device),
        metadata(shape.MetadataTable(), device),
        scales(shape.ScalesTable(), device),
        slots(shape, device) {}

  // Pinning has a cost per call; 256 MiB take about 20 ms.
  static constexpr uint64_t kPinnedSlabBytes = 256u << 20;

  const Shape shape;
  const HeadPlan plan;
  const SlotGeometry geometry;
  PagePool device, host;
  SequenceTable store, resident, metadata, scales;
  SlotTable slots;
};

// A sequence's part of the current step.
struct SequenceView {
  SequenceId id = 0;
  int64_t row = 0;  // its first row in the step's activations
  int64_t rows = 0;
  int64_t past = 0;     // tokens before this step
  int64_t stored = 0;   // how many of them are in the host store
  int64_t encoded = 0;  // how many of those have metadata
  bool ends_prompt = false;
  bool drafted = false;
  SequenceSlots* slots = nullptr;
  // Lists of pages, by the tables' list indices.
  std::byte* const* const* store = nullptr;
  std::byte* const* const* resident = nullptr;
  std::byte* const* const* metadata = nullptr;

  int64_t n() const { return past + rows; }

  // Null for a head without metadata.
  std::byte* const* Metadata(const Shape& shape, int64_t layer, int64_t head) const {
    const int64_t list = shape.metadata_list[static_cast<size_t>(shape.Index(layer, head))];
    return list < 0 ? nullptr : metadata[list];
  }
  // Rows of an offloaded head in the host store, or of a resident head on the device.
  ops::PagedRows Rows(const Shape& shape, int64_t layer, int64_t head) const {
    const auto index = static_cast<size_t>(shape.Index(layer, head));
    const int64_t list = shape.offloaded_list[index];
    if (list >= 0) return {store[list], shape.store_page_tokens, shape.store_format};
    return {resident[shape.resident_list[index]], shape.pages.page_tokens, shape.format};
  }
};

}  // namespace litecache::kv
