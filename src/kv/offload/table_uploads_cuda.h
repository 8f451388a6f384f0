// Changes of a step's tables of pages, sent to the device together: a blocking copy for each would
// wait for all that the GPU does, once for every sequence that begins a page.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"

namespace litecache::kv::offload {

class TableUploads {
 public:
  explicit TableUploads(CudaDevice& device) : device_(device), host_(device) {}

  // Keeps a copy of `count` pages for `target`, device memory.
  void Add(std::byte** target, std::byte* const* pages, size_t count);
  bool empty() const { return changes_.empty(); }
  // Enqueues all that was added. What an earlier call enqueued has to be over.
  void Send(Stream& stream);
  // Copies all that was added, blocking: before targets are freed.
  void Flush();

 private:
  struct Change {
    std::byte** target;
    size_t first, count;  // of pages_
  };
  void Clear();

  CudaDevice& device_;
  PinnedHost host_;
  std::vector<Change> changes_;
  std::vector<std::byte*> pages_;
  Buffer pinned_;  // pages_ where the copy engine reads them
  CudaCopyBatch copies_;
};

}  // namespace litecache::kv::offload
