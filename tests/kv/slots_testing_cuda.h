// Shared by tests of transfers: lists of rows to move, and the resulting bytes in the slots.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/litecache_testing_cuda.h"

namespace litecache::kv {

// The lists of rows to move for all pairs of a step, in the form in which lookups write them.
struct MoveLists {
  MoveLists(size_t pairs, size_t room)
      : room(room),
        refresh(pairs, 0),
        counts(pairs, 0),
        positions(pairs * room, -1),
        slots(pairs * room, -1) {}

  // Moves the rows `chosen` into the first slots of `into`.
  void Set(size_t pair, const std::vector<int32_t>& chosen, const std::vector<int32_t>& into) {
    counts[pair] = static_cast<int32_t>(chosen.size());
    std::copy(chosen.begin(), chosen.end(), positions.begin() + static_cast<int64_t>(pair * room));
    std::copy_n(into.begin(), chosen.size(), slots.begin() + static_cast<int64_t>(pair * room));
  }
  void CopyTo(CudaDevice& gpu, const ops::cuda::LiteCacheLayer& layer) const {
    gpu.Copy(layer.refresh, refresh.data(), refresh.size() * 4);
    gpu.Copy(layer.moved_count, counts.data(), counts.size() * 4);
    gpu.Copy(layer.moved_positions, positions.data(), positions.size() * 4);
    gpu.Copy(layer.moved_slots, slots.data(), slots.size() * 4);
  }

  size_t room;
  std::vector<int32_t> refresh, counts, positions, slots;
};

class SlotsTest : public ops::cuda::LiteCacheTest {
 protected:
  // The slots' bytes of every sequence; read after `stream_` has finished.
  using SlotBytes = std::vector<std::vector<std::byte>>;

  SlotBytes GetSlots() {
    SlotBytes bytes;
    for (int32_t s = 0; s < sequences(); ++s) {
      Pull(PagesOf(s, ops::cuda::kSlots));
      bytes.push_back(PagesOf(s, ops::cuda::kSlots).mirror);
    }
    return bytes;
  }
  void SetSlots(const SlotBytes& bytes) {
    stream_->Synchronize();
    for (int32_t s = 0; s < sequences(); ++s) {
      auto& pages = PagesOf(s, ops::cuda::kSlots);
      pages.mirror = bytes[static_cast<size_t>(s)];
      Push(pages);
    }
  }
  // Fills the slots with bytes that belong to no row.
  SlotBytes Poison(ops::cuda::Random& random) {
    const auto poison = static_cast<std::byte>(random());
    SlotBytes bytes;
    for (int32_t s = 0; s < sequences(); ++s) {
      bytes.emplace_back(PagesOf(s, ops::cuda::kSlots).mirror.size(), poison);
    }
    SetSlots(bytes);
    return bytes;
  }
};

}  // namespace litecache::kv
