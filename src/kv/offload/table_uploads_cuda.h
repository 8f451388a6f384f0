// Changes of a step's page tables, sent to the device together: a blocking copy for each would wait
// for all of the GPU's work, once for every sequence that begins a page.
#pragma once

#include <cstddef>
#include <vector>

#include "device/cuda/copy_batch.h"
#include "device/cuda/cuda_device.h"

namespace litecache::kv::offload {

class TableUploads {
 public:
  explicit TableUploads(CudaDevice& device) : device_(device), host_(device) {}

  // Keeps a copy of `count` pages to write to `target`, device memory.
  void Add(std::byte** target, std::byte* const* pages, size_t count);
  bool empty() const { return changes_.empty(); }
  // Enqueues everything added so far. The operations of an earlier call must be over.
  void Send(Stream& stream);
  // Copies everything added so far, blocking; call before targets are freed.
  void Flush();

 private:
  struct Change {
    std::byte** target;
    size_t first, count;  // index into pages_, and number
  };
  void Clear();

  CudaDevice& device_;
  PinnedHost host_;
  std::vector<Change> changes_;
  std::vector<std::byte*> pages_;
  Buffer pinned_;  // pages_ in pinned memory, for the copy engine
  CudaCopyBatch copies_;
};

}  // namespace litecache::kv::offload
