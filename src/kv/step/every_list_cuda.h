// The list table of caches in which a head's list of pages has the head's index.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "device/device.h"
#include "kv/cache.h"

namespace litecache::kv {

// int32 [layers][kv_heads] on the device: 0, 1, 2, ...
inline Buffer EveryList(Device& device, const Layout& layout) {
  std::vector<int32_t> lists(static_cast<size_t>(layout.layers * layout.kv_heads));
  std::iota(lists.begin(), lists.end(), 0);
  Buffer memory = device.Allocate(lists.size() * sizeof(int32_t));
  device.Upload(memory.data(), lists.data(), memory.size());
  return memory;
}

}  // namespace litecache::kv
