// Many copies between host and device in one call.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace litecache {

// One call per copy leaves the link idle between copies: pieces of 256 KiB are copied at 33 GB/s by
// separate calls and at 55 GB/s as a batch (lab/notes/gpu/transfer.md).
class CudaCopyBatch {
 public:
  // Between pinned host and device memory, either way. Copies of one Send() are unordered.
  void Add(void* target, const void* source, size_t bytes);
  // Enqueues what was added since the last call.
  void Send(Stream& stream);

 private:
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

}  // namespace litecache
