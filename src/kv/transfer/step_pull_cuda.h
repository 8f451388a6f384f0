// Transfer engine gpu-pull if pulls have SMs of their own (device/cuda/sm_split.h): one kernel
// transfers the rows of all layers of a step (ops/transfer/pull_step_cuda.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "device/cuda/branch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/sm_split.h"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/step/step_cuda.h"
#include "ops/transfer/pull_step_cuda.h"

namespace litecache::kv {

class StepPull {
 public:
  // Returns null, with the reason in *reason, if kernels on the two parts do not run
  // concurrently, as under tools that run one kernel at a time, or if LITECACHE_PULL_STEP=0 is set
  // in the environment. deadline_ns: for every wait.
  static std::unique_ptr<StepPull> Create(CudaDevice& device, PinnedHost& host,
                                          const SmSplit& split, int64_t layers,
                                          uint64_t deadline_ns, std::string* reason);

  // Sets the lists of the layers with pulled[layer] != 0. Call while the device is idle.
  void SetLayers(std::span<const ops::cuda::LiteCacheLayer> layers,
                 std::span<const uint8_t> pulled);

  // Begins a step on `main`. One kernel pulls the step's rows if `wanted` and the whole step is
  // being recorded: of operations that are issued one by one, later ones might never come. number:
  // device memory, different for each step and not 0.
  void BeginStep(Stream& main, bool wanted, const uint32_t* number);
  bool on() const { return on_; }
  // The lists of `layer` are complete after the operations enqueued on `decisions` so far. The
  // first call forks `pulls` from `main` for the rest of the step. Call with ascending layers.
  void Listed(Stream& main, CudaBranch& pulls, Stream& decisions, const ops::cuda::StepView& step,
              const ops::cuda::LiteCacheShape& shape, int64_t layer);
  // The same for a layer without lists.
  void Pass(Stream& stream, int64_t layer);
  // Operations enqueued on `stream` from here on see the layer's rows.
  void Await(Stream& stream, int64_t layer);

  // As TransferEngine::Check.
  std::optional<std::string> Check();
  void set_deadline(uint64_t nanoseconds) { pull_.deadline_ns = nanoseconds; }

 private:
  StepPull(CudaDevice& device, PinnedHost& host, int64_t layers, uint64_t deadline_ns);
  // Whether a kernel on the few SMs of `split` sees what a later kernel on the other SMs writes.
  bool RunsBeside(const SmSplit& split);

  CudaDevice& device_;
  Buffer layers_;  // PulledLayer [layers], device
  Buffer flags_;
  Buffer fault_;  // PullFault, host
  ops::cuda::PullStep pull_;
  ops::cuda::LiteCacheLayer any_;  // any of the pulled layers
  bool on_ = false, running_ = false;
};

}  // namespace litecache::kv
