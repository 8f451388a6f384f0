#include "kv/transfer/cpu_push_cuda.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace litecache::kv {
namespace {

using ops::cuda::kFlagStride;

// Bytes that a thread gathers at a time; half and twice as much are as fast. There are enough
// chunks to keep all threads busy with one head's rows, and a flag's latency over the link is
// negligible.
constexpr size_t kChunkBytes = size_t{32} << 10;

}  // namespace

CpuPush::CpuPush(CudaDevice& device, PinnedHost& host, const TransferOptions& options)
    : deadline_ns_(options.deadline_ns), drain_blocks_(options.drain_blocks), lists_(device, host) {
  const auto count = static_cast<int32_t>(std::max<size_t>(options.ring_bytes / kChunkBytes, 1));
  const size_t flag_bytes = static_cast<size_t>(count) * kFlagStride * sizeof(uint64_t);
  const size_t chunks_bytes = static_cast<size_t>(count) * kChunkBytes;
  why_no_bar_ = "not asked for";
  if (options.allow_bar) bar_ = CreateBarMapping(device, chunks_bytes + flag_bytes, &why_no_bar_);
  if (bar_ == nullptr) {
    pinned_ = host.Allocate(chunks_bytes + flag_bytes);
    std::memset(pinned_.as<std::byte>() + chunks_bytes, 0, flag_bytes);
  }
  consumed_ = host.Allocate(flag_bytes);
  std::memset(consumed_.data(), 0, flag_bytes);
  std::byte* of_device = bar_ != nullptr ? bar_->device() : pinned_.as<std::byte>();
  std::byte* of_host = bar_ != nullptr ? bar_->host() : pinned_.as<std::byte>();
  ring_ = {.chunks = of_device,
           .ready = reinterpret_cast<uint64_t*>(of_device + chunks_bytes),
           .consumed = consumed_.as<uint64_t>(),
           .count = count,
           .chunk_bytes = kChunkBytes};
  const PushMemory memory = {
      .mailbox = &lists_.mailbox(),
      .chunks = of_host,
      .ready = reinterpret_cast<uint64_t*>(of_host + chunks_bytes),
      .consumed = consumed_.as<uint64_t>(),
      .count = count,
      .chunk_bytes = kChunkBytes,
      .stores = bar_ != nullptr ? ops::CollectStores::kStreaming : ops::CollectStores::kCached};
  pusher_ = std::make_unique<RowPusher>(
      memory, options.threads > 0 ? options.threads : DefaultTransferThreads());
}

std::string CpuPush::Description() const {
  return fmt::format("cpu-push, {} threads, {}", pusher_->threads(),
                     bar_ != nullptr ? std::string("into GPU memory through GDRCopy")
                                     : fmt::format("through {} of pinned memory ({})",
                                                   FormatBytes(pinned_.size()), why_no_bar_));
}

void CpuPush::BeginStep() {
  lists_.BeginStep();
  ended_ = false;
  pusher_->Expect();
}

void CpuPush::Move(Stream& stream, const ops::cuda::StepView& step,
                   const ops::cuda::LiteCacheShape& shape, const ops::cuda::LiteCacheLayer& layer,
                   int64_t layer_index) {
  const ops::cuda::TransferList list =
      lists_.List(ring_.chunk_bytes, layer.store.format.row_bytes());
  lists_.Enter(stream);
  ops::cuda::ListRows(stream, step, shape, layer, list);
  ops::cuda::DrainRows(stream, list, ring_, layer.store.format, layer.slots.format,
                       static_cast<int32_t>(layer_index), deadline_ns_, drain_blocks_);
  lists_.Leave(stream);
}

std::optional<std::string> CpuPush::Check() {
  if (ended_) pusher_->Rest();
  const ops::cuda::TransferFault fault = lists_.mailbox().fault;
  if (fault.set == 0) return std::nullopt;
  // No thread may still be writing what earlier transfers requested.
  pusher_->Stop();
  lists_.ClearFault();
  pusher_->Restart();
  if (!ended_) pusher_->Expect();
  return fmt::format(
      "transfer cpu-push, layer {}: chunk {} did not arrive within {:.3g} s (the flag at place {} "
      "of "
      "the ring is {}, not {}); check whether the {} gathering threads get CPU time",
      fault.layer, fault.chunk, static_cast<double>(deadline_ns_) / 1e9,
      fault.chunk % static_cast<uint64_t>(ring_.count), fault.seen, fault.chunk + 1,
      pusher_->threads());
}

}  // namespace litecache::kv
