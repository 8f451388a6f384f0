#include "kv/transfer/transfer_lists_cuda.h"

#include <algorithm>
#include <new>

#include "device/cuda/check.h"
#include "device/recording_key.h"

namespace litecache::kv {

using ops::cuda::TransferMailbox;
using ops::cuda::TransferState;

TransferLists::TransferLists(CudaDevice& device, PinnedHost& host)
    : device_(device),
      host_(host),
      state_(device.Allocate(sizeof(TransferState))),
      mailbox_(host.Allocate(sizeof(TransferMailbox))) {
  device.Zero(state_.data(), state_.size());
  new (mailbox_.data()) TransferMailbox();
  LC_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}

TransferLists::~TransferLists() { cudaEventDestroy(event_); }

void TransferLists::Reserve(int64_t rows) {
  if (rows <= capacity_) return;
  sources_ = Buffer();
  targets_ = Buffer();
  scales_ = Buffer();
  capacity_ = 0;
  sources_ = host_.Allocate(static_cast<size_t>(rows) * sizeof(uint64_t));
  targets_ = device_.Allocate(static_cast<size_t>(rows) * sizeof(uint64_t));
  scales_ = device_.Allocate(static_cast<size_t>(rows) * sizeof(float2));
  capacity_ = rows;
}

ops::cuda::TransferList TransferLists::List(size_t chunk_bytes, size_t row_bytes) const {
  return {.sources = sources_.as<uint64_t>(),
          .targets = targets_.as<uint64_t>(),
          .scales = scales_.as<float2>(),
          .capacity = capacity_,
          .chunk_rows = static_cast<int32_t>(std::max<size_t>(chunk_bytes / row_bytes, 1)),
          .state = state_.as<TransferState>(),
          .mailbox = mailbox_.as<TransferMailbox>()};
}

void TransferLists::ClearFault() {
  const uint32_t none = 0;
  device_.Copy(&state_.as<TransferState>()->fault, &none, sizeof(none));
  mailbox().fault = {};
}

uint64_t TransferLists::key() const {
  return RecordingKey().Add(sources_).Add(targets_).Add(scales_).value();
}

void TransferLists::Enter(Stream& stream) {
  CUstream_st* handle = AsCuda(stream).handle();
  if (last_ != nullptr && last_ != handle) LC_CUDA(cudaStreamWaitEvent(handle, event_, 0));
}

void TransferLists::Leave(Stream& stream) {
  CUstream_st* handle = AsCuda(stream).handle();
  LC_CUDA(cudaEventRecord(event_, handle));
  last_ = handle;
}

}  // namespace litecache::kv
