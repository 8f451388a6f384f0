// The heads of a layer that were decided with a predicted query and have to be decided again. The
// check runs beside the attention of all heads; what follows where a head misses is the body of a
// conditional node of the recorded step: its fourteen kernels would take 37 us where none does
// (H200, lab/notes/gpu/litecache.md).
#pragma once

#include <cstddef>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/step_condition.h"

namespace litecache::kv {

class Corrections {
 public:
  explicit Corrections(CudaDevice& device)
      : device_(device), steps_(device), branch_(device, 0, /*first=*/true) {}

  // Recorded graphs must not refer to the old scratch.
  void Reserve(size_t scratch_bytes, size_t aside_bytes);
  void* scratch() const { return memory_.data(); }
  void* aside() const { return memory_.as<std::byte>() + scratch_bytes_; }
  const Buffer& memory() const { return memory_; }
  CudaBranch& branch() { return branch_; }
  ConditionalSteps& steps() { return steps_; }

 private:
  CudaDevice& device_;
  Buffer memory_;             // scratch, then aside's scratch (decisions_cuda.h)
  size_t scratch_bytes_ = 0;  // size of the first part
  ConditionalSteps steps_;
  // Declared last: its destructor waits before the memory is freed.
  CudaBranch branch_;
};

}  // namespace litecache::kv
