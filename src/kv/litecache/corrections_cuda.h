// The heads of a layer that were decided with a predicted query and have to be decided again: on a
// stream beside the attention of the other heads. Where no head misses, their kernels end at once,
// before the attention does (17 us of kernels beside 20 us at 8K and 38 us at 131,000 tokens). As
// the body of a conditional node they began 70 us after the lookup that asked for them (H200,
// lab/notes/gpu/litecache.md).
#pragma once

#include <cstddef>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"

namespace litecache::kv {

class Corrections {
 public:
  explicit Corrections(CudaDevice& device) : device_(device), branch_(device, 0, /*first=*/true) {}

  // Recorded graphs must not refer to the old scratch.
  void Reserve(size_t scratch_bytes, size_t aside_bytes);
  void* scratch() const { return memory_.data(); }
  void* aside() const { return memory_.as<std::byte>() + scratch_bytes_; }
  const Buffer& memory() const { return memory_; }
  CudaBranch& branch() { return branch_; }

 private:
  CudaDevice& device_;
  Buffer memory_;             // scratch, then aside's scratch (decisions_cuda.h)
  size_t scratch_bytes_ = 0;  // size of the first part
  // Declared last: its destructor waits before the memory is freed.
  CudaBranch branch_;
};

}  // namespace litecache::kv
