// How rows of the host store are transferred into a layer's slots on a GPU: one interface, three
// implementations.
//   gpu-pull  kernels read the rows through the link (ops/transfer/pull_rows_cuda.h)
//   cpu-push  CPU threads gather the rows that the device requests through flags, within the graph
//   copy      the host waits for the list, gathers, copies: outside any graph
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "device/cuda/cuda_device.h"
#include "litecache/kv_options.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

class TransferEngine {
 public:
  virtual ~TransferEngine() = default;
  virtual std::string_view name() const = 0;
  // The configuration in one line: threads, where the ring is.
  virtual std::string Description() const { return std::string(name()); }

  // Makes room for transfers of `pairs` (sequence, KV head) pairs of at most `max_rows` rows each.
  // Call while the device is idle; may change key().
  virtual void Reserve(int64_t pairs, int64_t max_rows) {}
  // Whether transfers can be part of a recording, and their part of its key.
  virtual bool replayable() const { return true; }
  virtual uint64_t key() const { return 0; }

  // BeginStep: a step that may move rows begins. EndStep: all of it has been issued.
  virtual void BeginStep() {}
  virtual void EndStep() {}
  // Enqueues the transfer of rows moved_positions into moved_slots, for all heads with refresh ==
  // 1, as PullRows does. layer_index: for error messages. Transfers run one after another, also if
  // they are on different streams of a step.
  virtual void Move(Stream& stream, const ops::cuda::StepView& step,
                    const ops::cuda::LiteCacheShape& shape, const ops::cuda::LiteCacheLayer& layer,
                    int64_t layer_index) = 0;
  // Whether Move() enqueues kernels only, all on its stream, so that it may run beside the step's
  // own stream.
  virtual bool kernels_only() const { return false; }
  // Call after waiting for the streams: the error since the last call, if any. Then the slots of
  // the steps since that call may be wrong; the engine can continue.
  virtual std::optional<std::string> Check() { return std::nullopt; }
};

struct TransferOptions {
  std::string engine = "gpu-pull";  // gpu-pull | cpu-push | copy
  int threads = 0;                  // number of threads that gather; 0: DefaultTransferThreads()
  // How long the device waits for a chunk before it reports a fault.
  uint64_t deadline_ns = uint64_t{5} * 1000 * 1000 * 1000;
  // Size of the buffer of cpu-push and copy between host and device.
  size_t ring_bytes = size_t{8} << 20;
  // cpu-push: SMs that wait for chunks and put their rows into slots.
  int32_t drain_blocks = 10;
  bool allow_bar = true;  // cpu-push: write GPU memory through GDRCopy if available
};

// The engine and threads that options.transfer and transfer_threads select.
TransferOptions TransferOptionsOf(const KvOptions& options);

// All cores but the one that drives the device, at most 16 (lab/notes/gpu/transfer.md).
int DefaultTransferThreads();

// Throws InvalidArgument for an unknown engine, CapacityError if there is no memory for it.
std::unique_ptr<TransferEngine> CreateTransferEngine(CudaDevice& device, PinnedHost& host,
                                                     const TransferOptions& options);

}  // namespace litecache::kv
