// A sequence's lists of pages in device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "kv/pages/sequence_table.h"

namespace litecache::kv {

// Page of block b of list i at [b * lists + i], as kernels read them (ops/step/step_cuda.h).
// Follows lists on the host: what has changed there is uploaded, a block at most in most steps and
// nothing in nearly all.
class DevicePages {
 public:
  // at(list, block): the page now. Blocks before `first_changed` are as at the last call.
  template <class At>
  void Update(Device& device, int64_t lists, int64_t blocks, int64_t first_changed, const At& at) {
    Update(device, lists, blocks, first_changed, at, Uploading(device));
  }
  // put(target, pages, count): copies `count` pages to the device, perhaps later; they are valid
  // during the call.
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

  // Updates where the sequence's pages in `table`, always the same one, have changed since the last
  // call, which may have been for another sequence. at(list, block): a page of it; `lists`: as many
  // as a list of the table has, or several of each. 64 sequences' pages of all layers and heads
  // compared at every step took 0.3 ms of it.
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
  // The table's own lists.
  void Follow(Device& device, const SequenceTable& table, SequenceId id) {
    std::byte* const* const* from = table.Lists(id);
    Follow(device, table, id, table.lists(),
           [from](int64_t list, int64_t b) { return from[list][b]; });
  }

  std::byte* const* device() const { return memory_.as<std::byte* const>(); }

 private:
  // Of some thousands of tokens: few sequences pass that and take memory while they decode.
  static constexpr size_t kLeastBlocks = 32;

  static auto Uploading(Device& device) {
    return [&device](std::byte** target, std::byte* const* pages, size_t count) {
      device.Upload(target, pages, count * sizeof(std::byte*));
    };
  }

  std::vector<std::byte*> host_;
  size_t uploaded_ = 0;      // of host_, entries the device has
  SequenceId followed_ = 0;  // at the last call
  int64_t followed_changes_ = 0;
  Buffer memory_;
};

}  // namespace litecache::kv
