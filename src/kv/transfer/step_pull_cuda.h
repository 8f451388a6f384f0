// Transfer engine gpu-pull where pulls have SMs of their own (device/cuda/sm_split.h): one kernel
// brings the rows of all layers of a step (ops/transfer/pull_step_cuda.h).
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
  // Null and why in *why_none where kernels of the two parts do not run beside each other, as under
  // tools that let one kernel run at a time, or where the environment's LITECACHE_PULL_STEP=0 says
  // so. deadline_ns: of every wait.
  static std::unique_ptr<StepPull> Create(CudaDevice& device, PinnedHost& host,
                                          const SmSplit& split, int64_t layers,
                                          uint64_t deadline_ns, std::string* why_none);

  // What the layers' lists are, those that pull[layer] has. While the device does nothing.
  void SetLayers(std::span<const ops::cuda::LiteCacheLayer> layers,
                 std::span<const uint8_t> pulled);

  // A step begins on `main`. Its rows come this way where that is `wanted` and all of the step is
  // being recorded: of what is issued one by one the rest might never come. number: device memory,
  // another one each step and not 0.
  void BeginStep(Stream& main, bool wanted, const uint32_t* number);
  bool on() const { return on_; }
  // The lists of `layer` are what `decisions` has been given so far. The first call forks `pulls`
  // from `main`, for as long as the step; ascending layers.
  void Listed(Stream& main, CudaBranch& pulls, Stream& decisions, const ops::cuda::StepView& step,
              const ops::cuda::LiteCacheShape& shape, int64_t layer);
  // The same of a layer that has no lists.
  void Pass(Stream& stream, int64_t layer);
  // What `stream` is given from here on finds the layer's rows.
  void Await(Stream& stream, int64_t layer);

  // As TransferEngine's.
  std::optional<std::string> Check();
  void set_deadline(uint64_t nanoseconds) { pull_.deadline_ns = nanoseconds; }

 private:
  StepPull(CudaDevice& device, PinnedHost& host, int64_t layers, uint64_t deadline_ns);
  // Whether a kernel on `split`'s few SMs sees what one that comes after it on the others writes.
  bool RunsBeside(const SmSplit& split);

  CudaDevice& device_;
  Buffer layers_;  // PulledLayer [layers]
  Buffer flags_;
  Buffer fault_;  // PullFault, host
  ops::cuda::PullStep pull_;
  ops::cuda::LiteCacheLayer any_;  // one of those that are pulled
  bool on_ = false, running_ = false;
};

}  // namespace litecache::kv
