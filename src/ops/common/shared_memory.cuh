// More dynamic shared memory per block than the 48 KiB that need no attribute.
#pragma once

#include <cstddef>

namespace litecache::ops::cuda {

size_t AllowSharedMemoryOf(const void* kernel);

// Allows launches of `kernel` on the current GPU to use as much dynamic shared memory as that has
// for a block; returns that size. Only the first call for a kernel and a GPU changes the kernel:
// captured graphs that contain it remain valid.
template <typename Kernel>
size_t AllowSharedMemory(Kernel* kernel) {
  return AllowSharedMemoryOf(reinterpret_cast<const void*>(kernel));
}

}  // namespace litecache::ops::cuda
