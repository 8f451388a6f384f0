// Scratch that a step's decode attention writes between its kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/device.h"
#include "kv/cache.h"
#include "ops/attention/attention_cuda.h"

namespace litecache::kv {

class AttentionBuffer {
 public:
  explicit AttentionBuffer(Device& device) : device_(device) {}

  // Call before a step of `decode_rows` decode rows; grows if necessary.
  void Prepare(int64_t decode_rows, const Layout& layout) {
    const size_t bytes = ops::cuda::AttentionScratchBytes(std::max<int64_t>(decode_rows, 1),
                                                          layout.q_heads, layout.head_dim);
    if (bytes <= memory_.size()) return;
    memory_ = Buffer();  // free first: the old and the new buffer need not fit together
    memory_ = device_.Allocate(bytes);
  }
  const Buffer& memory() const { return memory_; }
  void* data() const { return memory_.data(); }

 private:
  Device& device_;
  Buffer memory_;
};

}  // namespace litecache::kv
