// A sequence's lists of pages in device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace litecache::kv {

// Page of block b of list i at [b * lists + i], as kernels read them (ops/cuda/step/step.h).
// Follows a table on the host: what has changed there is uploaded, a block at most in most steps
// and nothing in nearly all.
class DevicePages {
 public:
  // at(list, block): the page now. Blocks before `first_changed` are as at the last call (a table
  // only ever changes the block it writes to next, and adds blocks).
  template <class At>
  void Update(Device& device, int64_t lists, int64_t blocks, int64_t first_changed, const At& at) {
    Update(device, lists, blocks, first_changed, at,
           [&](std::byte** target, std::byte* const* pages, size_t count) {
             device.Upload(target, pages, count * sizeof(std::byte*));
           });
  }
  // put(target, pages, count): copies `count` pages to the device, perhaps later; they are valid
  // during the call.
  template <class At, class Put>
  void Update(Device& device, int64_t lists, int64_t blocks, int64_t first_changed, const At& at,
              const Put& put) {
    const auto size = static_cast<size_t>(lists * blocks);
    size_t begin = std::min(static_cast<size_t>(lists * first_changed), host_.size());
    begin = begin / static_cast<size_t>(lists > 0 ? lists : 1) * static_cast<size_t>(lists);
    host_.resize(size);
    size_t changed_begin = size, changed_end = 0;
    for (size_t i = begin; i < size; ++i) {
      std::byte* page = at(static_cast<int64_t>(i) % lists, static_cast<int64_t>(i) / lists);
      if (host_[i] == page && i < uploaded_) continue;
      host_[i] = page;
      changed_begin = std::min(changed_begin, i);
      changed_end = i + 1;
    }
    uploaded_ = std::min(uploaded_, size);
    if (size * sizeof(std::byte*) > memory_.size()) {
      memory_ = Buffer();
      memory_ = device.Allocate(std::max<size_t>(2 * size, 64) * sizeof(std::byte*));
      changed_begin = 0;
      changed_end = size;
    }
    if (changed_begin < changed_end) {
      put(memory_.as<std::byte*>() + changed_begin, host_.data() + changed_begin,
          changed_end - changed_begin);
    }
    uploaded_ = size;
  }

  std::byte* const* device() const { return memory_.as<std::byte* const>(); }

 private:
  std::vector<std::byte*> host_;
  size_t uploaded_ = 0;  // of host_, entries the device has
  Buffer memory_;
};

}  // namespace litecache::kv
