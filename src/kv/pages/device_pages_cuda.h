// A sequence's lists of pages in device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "kv/pages/sequence_table.h"

namespace litecache::kv {

// The page of block b of list i is at [b * lists + i], as kernels read them (ops/step/step_cuda.h).
// A copy of lists on the host: changes are uploaded, in most steps at most a block and in nearly
// all nothing.
class DevicePages {
  // Before its uses: clang must have seen what it returns.
  static auto Uploading(Device& device) {
    return [&device](std::byte** target, std::byte* const* pages, size_t count) {
      device.Upload(target, pages, count * sizeof(std::byte*));
    };
  }

 public:
  // at(list, block): the current page. Blocks before `first_changed` must be unchanged since the
  // last call.
  template <class At>
  void Update(Device& device, int64_t lists, int64_t blocks, int64_t first_changed, const At& at) {
    Update(device, lists, blocks, first_changed, at, Uploading(device));
  }
  // put(target, pages, count) copies `count` pages to the device, possibly later; `pages` is valid
  // during the call only.
  template <class At, class Put>
  void Update(Device& device, int64_t lists, int64_t blocks, int64_t first_changed, const At& at,
              const Put& put) {
    const auto size = static_cast<size_t>(lists * blocks);
    const int64_t known = lists > 0 ? static_cast<int64_t>(host_.size()) / lists : 0;
    host_.resize(size);
    size_t changed_begin = size, changed_end = 0;
    for (int64_t b = std::min(first_changed, known); b < blocks; ++b) {
      for (int64_t list = 0; list < lists; ++list) {
        const auto i = static_cast<size_t>(b * lists + list);
        std::byte* const page = at(list, b);
        if (host_[i] == page && i < uploaded_) continue;
        host_[i] = page;
        changed_begin = std::min(changed_begin, i);
        changed_end = i + 1;
      }
    }
    uploaded_ = std::min(uploaded_, size);
    if (size * sizeof(std::byte*) > memory_.size()) {
      memory_ = Buffer();
      memory_ =
          device.Allocate(std::max<size_t>(2 * size, kLeastBlocks * static_cast<size_t>(lists)) *
                          sizeof(std::byte*));
      changed_begin = 0;
      changed_end = size;
    }
    if (changed_begin < changed_end) {
      put(memory_.as<std::byte*>() + changed_begin, host_.data() + changed_begin,
          changed_end - changed_begin);
    }
    uploaded_ = size;
  }

  // Updates if the sequence's pages in `table` (always the same table) have changed since the last
  // call, or the last call was for another sequence. at(list, block): a page of it; `lists`: the
  // number of lists in the table, or a multiple. Comparing 64 sequences' pages of all layers and
  // heads at every step took 0.3 ms of the step.
  template <class At>
  void Follow(Device& device, const SequenceTable& table, SequenceId id, int64_t lists,
              const At& at) {
    Follow(device, table, id, lists, at, Uploading(device));
  }
  template <class At, class Put>
  void Follow(Device& device, const SequenceTable& table, SequenceId id, int64_t lists,
              const At& at, const Put& put) {
    const int64_t changes = table.Changes(id);
    const int64_t known = id == followed_ ? followed_changes_ : 0;
    if (lists == 0 || (id == followed_ && changes == known)) return;
    Update(device, lists, table.Blocks(id), table.FirstChanged(id, known), at, put);
    followed_ = id;
    followed_changes_ = changes;
  }
  // Follows the table's own lists.
  void Follow(Device& device, const SequenceTable& table, SequenceId id) {
    std::byte* const* const* from = table.Lists(id);
    Follow(device, table, id, table.lists(),
           [from](int64_t list, int64_t b) { return from[list][b]; });
  }

  std::byte* const* device() const { return memory_.as<std::byte* const>(); }

 private:
  // Blocks for some thousands of tokens: few sequences exceed that and allocate while they decode.
  static constexpr size_t kLeastBlocks = 32;

  std::vector<std::byte*> host_;
  size_t uploaded_ = 0;      // number of host_'s entries that the device has
  SequenceId followed_ = 0;  // the sequence of the last call
  int64_t followed_changes_ = 0;
  Buffer memory_;
};

}  // namespace litecache::kv
