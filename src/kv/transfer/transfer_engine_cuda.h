// How rows of the host store come into a layer's slots on a GPU. Three ways, one interface:
//   gpu-pull  kernels read the rows through the link (ops/transfer/pull_rows_cuda.h)
//   cpu-push  CPU threads gather what the device asks for through flags, beside the graph
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
  // What it came to: threads, where the ring lies; one line.
  virtual std::string Description() const { return std::string(name()); }

  // Room for transfers of `pairs` heads of at most `max_rows` rows each. Only while the device does
  // nothing; may change what key() says.
  virtual void Reserve(int64_t pairs, int64_t max_rows) {}
  // Whether transfers can be part of a recording, and what its key has of them.
  virtual bool replayable() const { return true; }
  virtual uint64_t key() const { return 0; }

  // A step that may move rows begins; all of it has been issued.
  virtual void BeginStep() {}
  virtual void EndStep() {}
  // Enqueues: rows of moved_positions into moved_slots, of all heads with refresh == 1, as PullRows
  // does. layer_index: what an error names. One after another, also from different streams of a
  // step.
  virtual void Move(Stream& stream, const ops::cuda::StepView& step,
                    const ops::cuda::LiteCacheShape& shape, const ops::cuda::LiteCacheLayer& layer,
                    int64_t layer_index) = 0;
  // After the streams have been waited for: what went wrong since the last call, if anything. The
  // slots of the steps since then are not to be trusted; the engine can go on.
  virtual std::optional<std::string> Check() { return std::nullopt; }
};

struct TransferOptions {
  std::string engine = "gpu-pull";  // gpu-pull | cpu-push | copy
  int threads = 0;                  // that gather; 0: DefaultTransferThreads()
  // How long the device waits for a chunk: what is not there by then does not come.
  uint64_t deadline_ns = uint64_t{5} * 1000 * 1000 * 1000;
  // Of what cpu-push and copy keep between host and device.
  size_t ring_bytes = size_t{8} << 20;
  // cpu-push: SMs that wait for chunks and put their rows into slots.
  int32_t drain_blocks = 10;
  bool allow_bar = true;  // cpu-push: write GPU memory through GDRCopy where it is there
};

// What options.transfer and transfer_threads ask for.
TransferOptions TransferOptionsOf(const KvOptions& options);

// All cores but the one that drives the device, at most 16 (lab/notes/gpu/transfer.md).
int DefaultTransferThreads();

// Throws InvalidArgument for another engine's name, CapacityError where its memory is not there.
std::unique_ptr<TransferEngine> CreateTransferEngine(CudaDevice& device, PinnedHost& host,
                                                     const TransferOptions& options);

}  // namespace litecache::kv
