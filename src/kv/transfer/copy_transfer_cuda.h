// Transfer engine copy, the method of older systems: the host waits until a layer's rows are known,
// gathers them with its threads, copies them, and a kernel scatters them. It cannot be part of a
// graph.
#pragma once

#include <array>

#include "base/thread_pool.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "kv/transfer/transfer_lists_cuda.h"

namespace litecache::kv {

class CopyTransfer final : public TransferEngine {
 public:
  CopyTransfer(CudaDevice& device, PinnedHost& host, const TransferOptions& options);
  ~CopyTransfer() override;

  std::string_view name() const override { return "copy"; }
  std::string Description() const override;
  void Reserve(int64_t pairs, int64_t max_rows) override { lists_.Reserve(pairs * max_rows); }
  bool replayable() const override { return false; }
  void BeginStep() override { lists_.BeginStep(); }
  void Move(Stream& stream, const ops::cuda::StepView& step, const ops::cuda::LiteCacheShape& shape,
            const ops::cuda::LiteCacheLayer& layer, int64_t layer_index) override;

 private:
  // Halves of the buffers: one is filled while the other is copied.
  struct Half {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    CUevent_st* copied = nullptr;  // recorded when the last copy from the host's half is done
  };

  TransferLists lists_;
  ThreadPool pool_;
  size_t half_bytes_;
  Buffer gathered_;  // host
  Buffer staged_;
  std::array<Half, 2> halves_;
};

}  // namespace litecache::kv
