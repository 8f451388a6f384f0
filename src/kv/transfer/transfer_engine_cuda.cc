#include "kv/transfer/transfer_engine_cuda.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kv/transfer/copy_transfer_cuda.h"
#include "kv/transfer/cpu_push_cuda.h"
#include "ops/transfer/pull_rows_cuda.h"

namespace litecache::kv {
namespace {

// Fewer blocks do not reach the link's rate; more only take SMs from other kernels
// (lab/notes/gpu/litecache.md, "What a step waits for beside a pull").
constexpr int32_t kPullBlocks = 48;

class GpuPull final : public TransferEngine {
 public:
  std::string_view name() const override { return "gpu-pull"; }
  bool kernels_only() const override { return true; }
  void Move(Stream& stream, const ops::cuda::StepView& step, const ops::cuda::LiteCacheShape& shape,
            const ops::cuda::LiteCacheLayer& layer, int64_t) override {
    ops::cuda::PullRows(stream, step, shape, layer, kPullBlocks);
  }
};

}  // namespace

TransferOptions TransferOptionsOf(const KvOptions& options) {
  TransferOptions transfer;
  if (options.transfer != "auto") transfer.engine = options.transfer;
  transfer.threads = options.transfer_threads;
  return transfer;
}

int DefaultTransferThreads() { return std::clamp(AvailableCores() - 1, 1, 16); }

std::unique_ptr<TransferEngine> CreateTransferEngine(CudaDevice& device, PinnedHost& host,
                                                     const TransferOptions& options) {
  if (options.engine == "gpu-pull") return std::make_unique<GpuPull>();
  if (options.engine == "cpu-push") return std::make_unique<CpuPush>(device, host, options);
  if (options.engine == "copy") return std::make_unique<CopyTransfer>(device, host, options);
  throw InvalidArgument("transfer engine '{}' is not one of gpu-pull, cpu-push, copy",
                        options.engine);
}

}  // namespace litecache::kv
