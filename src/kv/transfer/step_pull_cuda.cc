#include "kv/transfer/step_pull_cuda.h"

#include <fmt/core.h>

#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/check.h"

namespace litecache::kv {

using ops::cuda::kLayerFlags;
using ops::cuda::PulledLayer;
using ops::cuda::PullFault;

namespace {

// Deadline for kernels that wait only for each other to start.
constexpr uint64_t kProbeNanoseconds = 50 * 1000 * 1000;

bool TurnedOff() {
  const char* value = std::getenv("LITECACHE_PULL_STEP");
  return value != nullptr && std::string_view(value) == "0";
}

}  // namespace

std::unique_ptr<StepPull> StepPull::Create(CudaDevice& device, PinnedHost& host,
                                           const SmSplit& split, int64_t layers,
                                           uint64_t deadline_ns, std::string* reason) {
  if (TurnedOff()) {
    *reason = "LITECACHE_PULL_STEP=0";
    return nullptr;
  }
  std::unique_ptr<StepPull> pull(new StepPull(device, host, layers, deadline_ns));
  if (!pull->RunsBeside(split)) {
    *reason = "kernels on different SMs do not run beside each other here";
    return nullptr;
  }
  return pull;
}

StepPull::StepPull(CudaDevice& device, PinnedHost& host, int64_t layers, uint64_t deadline_ns)
    : device_(device),
      layers_(device.Allocate(static_cast<size_t>(layers) * sizeof(PulledLayer))),
      // Two kinds of flags for each layer, one word for the fault, one for the probe's number.
      flags_(
          device.Allocate((2 * static_cast<size_t>(layers) + 2) * kLayerFlags * sizeof(uint32_t))),
      fault_(host.Allocate(sizeof(PullFault))) {
  device.Zero(flags_.data(), flags_.size());
  new (fault_.data()) PullFault();
  auto* flags = flags_.as<uint32_t>();
  pull_.layers = layers_.as<PulledLayer>();
  pull_.count = static_cast<int32_t>(layers);
  pull_.listed = flags;
  pull_.arrived = flags + layers * kLayerFlags;
  pull_.stopped = flags + 2 * layers * kLayerFlags;
  pull_.fault = fault_.as<PullFault>();
  pull_.deadline_ns = deadline_ns;
}

// Recorded, as steps are. The probe waits for the flag that says "listed"; any flag would do.
bool StepPull::RunsBeside(const SmSplit& split) {
  ops::cuda::PullStep probe = pull_;
  uint32_t* number = pull_.stopped + kLayerFlags;
  const uint32_t one = 1, none = 0;
  device_.Copy(number, &one, sizeof(one));
  probe.number = number;
  probe.blocks = 1;
  probe.arrived = probe.listed;
  probe.deadline_ns = kProbeNanoseconds;
  const std::unique_ptr<CudaStream> rest = split.StreamOfRest(/*first=*/false);
  CudaBranch few(split.StreamOfFew(/*first=*/true), 0);
  bool beside = false;
  for (int run = 0; run < 2; ++run) {  // the second run is recorded
    device_.Zero(flags_.data(), flags_.size());
    device_.Copy(number, &one, sizeof(one));
    rest->Run(1, [&] {
      few.Fork(*rest);
      ops::cuda::AwaitArrival(few.stream(), probe, 0);
      ops::cuda::TellListed(*rest, probe, 0, /*none=*/false);
      few.JoinAll(*rest);
    });
    rest->Synchronize();
    beside = !Check().has_value();
  }
  device_.Zero(flags_.data(), flags_.size());
  device_.Copy(number, &none, sizeof(none));
  return beside;
}

void StepPull::SetLayers(std::span<const ops::cuda::LiteCacheLayer> layers,
                         std::span<const uint8_t> pulled) {
  LC_CHECK(layers.size() == pulled.size() && layers.size() == static_cast<size_t>(pull_.count));
  std::vector<PulledLayer> all(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!pulled[i]) continue;
    all[i] = PulledOf(layers[i]);
    any_ = layers[i];
  }
  device_.Upload(layers_.data(), all.data(), all.size() * sizeof(PulledLayer));
}

void StepPull::BeginStep(Stream& main, bool wanted, const uint32_t* number) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LC_CUDA(cudaStreamIsCapturing(AsCuda(main).handle(), &status));
  on_ = wanted && status == cudaStreamCaptureStatusActive;
  running_ = false;
  pull_.number = number;
}

void StepPull::Listed(Stream& main, CudaBranch& pulls, Stream& decisions,
                      const ops::cuda::StepView& step, const ops::cuda::LiteCacheShape& shape,
                      int64_t layer) {
  LC_CHECK(on_);
  if (!std::exchange(running_, true)) {
    pulls.Fork(main);
    pull_.blocks = ops::cuda::PullStepBlocks(pulls.stream());
    ops::cuda::PullStepRows(pulls.stream(), step, shape, any_, pull_, layer);
  }
  ops::cuda::TellListed(decisions, pull_, layer, /*none=*/false);
}

void StepPull::Pass(Stream& stream, int64_t layer) {
  if (running_) ops::cuda::TellListed(stream, pull_, layer, /*none=*/true);
}

void StepPull::Await(Stream& stream, int64_t layer) {
  LC_CHECK(on_ && running_);
  ops::cuda::AwaitArrival(stream, pull_, layer);
}

std::optional<std::string> StepPull::Check() {
  const PullFault fault = std::exchange(*fault_.as<PullFault>(), PullFault());
  if (fault.set == 0) return std::nullopt;
  return fmt::format(
      "transfer gpu-pull, layer {}: {} within {:.3g} s (a flag is {}, not {}); if kernels cannot "
      "run "
      "concurrently, set LITECACHE_PULL_STEP=0 (one pull kernel per layer)",
      fault.layer,
      fault.for_list ? "which rows it wants was not known" : "the rows that it wants did not come",
      static_cast<double>(pull_.deadline_ns) / 1e9, fault.seen, fault.number);
}

}  // namespace litecache::kv
