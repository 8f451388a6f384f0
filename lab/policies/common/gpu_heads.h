// Which heads the laboratory's kernels take on a GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "kv/cache.h"
#include "lab/namespaces.h"

namespace litecache::lab {

// Throws Unsupported for a layout whose heads are too wide for a policy's kernels on a GPU.
inline void CheckGpuHeads(const Layout& layout, DeviceType device, std::string_view policy) {
  constexpr int64_t kMost = 256;
  if (device != DeviceType::kCuda || layout.head_dim <= kMost) return;
  throw Unsupported(
      "KV policy {}: heads of {} values; on a GPU its kernels take up to {}: use another policy, "
      "or "
      "--device cpu",
      policy, layout.head_dim, kMost);
}

}  // namespace litecache::lab
