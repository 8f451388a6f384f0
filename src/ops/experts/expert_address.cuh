// Where an expert's matrix is.
#pragma once

#include <cstdint>

namespace litecache::ops::cuda {

// Past the L1 cache: slots of experts get other experts (expert_slots_cuda.h), and kernels that
// start early read the table before they have waited for the kernel before them.
__device__ inline const void* AddressOf(const void* const* table, int32_t expert) {
  return reinterpret_cast<const void*>(
      __ldcg(reinterpret_cast<const unsigned long long*>(table + expert)));
}

}  // namespace litecache::ops::cuda
