#include "kv/transfer/copy_transfer_cuda.h"

#include <fmt/core.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "ops/rows/collect_rows.h"

namespace litecache::kv {
namespace {

// Rows that a thread gathers at a time.
constexpr int64_t kPieceRows = 64;

}  // namespace

CopyTransfer::CopyTransfer(CudaDevice& device, PinnedHost& host, const TransferOptions& options)
    : lists_(device, host),
      pool_(options.threads > 0 ? options.threads : DefaultTransferThreads()),
      half_bytes_(std::max<size_t>(options.ring_bytes / 2 / 4096 * 4096, 4096)),
      gathered_(host.Allocate(2 * half_bytes_)),
      staged_(device.Allocate(2 * half_bytes_)) {
  for (size_t i = 0; i < halves_.size(); ++i) {
    halves_[i].host = gathered_.as<std::byte>() + i * half_bytes_;
    halves_[i].device = staged_.as<std::byte>() + i * half_bytes_;
    LC_CUDA(cudaEventCreateWithFlags(&halves_[i].copied, cudaEventDisableTiming));
  }
}

CopyTransfer::~CopyTransfer() {
  for (const Half& half : halves_) cudaEventDestroy(half.copied);
}

std::string CopyTransfer::Description() const {
  return fmt::format("copy, {} threads", pool_.size());
}

void CopyTransfer::Move(Stream& stream, const ops::cuda::StepView& step,
                        const ops::cuda::LiteCacheShape& shape,
                        const ops::cuda::LiteCacheLayer& layer, int64_t) {
  CUstream_st* handle = AsCuda(stream).handle();
  const size_t row_bytes = layer.store.format.row_bytes();
  const ops::cuda::TransferList list = lists_.List(half_bytes_, row_bytes);
  LC_CHECK(static_cast<size_t>(list.chunk_rows) * row_bytes <= half_bytes_);
  lists_.Enter(stream);
  ops::cuda::ListRows(stream, step, shape, layer, list);
  LC_CUDA(cudaStreamSynchronize(handle));
  const ops::cuda::TransferRequest& request = lists_.mailbox().request;
  const auto rows = static_cast<int64_t>(request.rows);
  for (int64_t first = 0, i = 0; first < rows; first += list.chunk_rows, ++i) {
    const Half& half = halves_[static_cast<size_t>(i % 2)];
    const int64_t count = std::min<int64_t>(list.chunk_rows, rows - first);
    LC_CUDA(cudaEventSynchronize(half.copied));
    pool_.ParallelFor(count, kPieceRows, [&](int64_t begin, int64_t end, int) {
      ops::CollectRows(request.sources + first + begin, end - begin, row_bytes,
                       half.host + static_cast<size_t>(begin) * row_bytes,
                       ops::CollectStores::kCached);
    });
    LC_CUDA(cudaMemcpyAsync(half.device, half.host, static_cast<size_t>(count) * row_bytes,
                            cudaMemcpyHostToDevice, handle));
    LC_CUDA(cudaEventRecord(half.copied, handle));
    ops::cuda::ScatterRows(stream, list, first, count, half.device, layer.store.format,
                           layer.slots.format);
  }
  lists_.Leave(stream);
}

}  // namespace litecache::kv
