#include <cstdlib>
#include <string_view>

#include "ops/common/overlap.cuh"

namespace litecache::ops::cuda {
namespace {

__global__ void ProbeKernel() {}

bool TurnedOff() {
  static const bool off = [] {
    const char* value = std::getenv("LITECACHE_OVERLAP");
    return value != nullptr && std::string_view(value) == "0";
  }();
  return off;
}

// The node that the stream's next operation would follow in the graph being captured, if it is
// exactly one; otherwise null.
CapturedKernel CapturedBefore(CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  LC_CUDA(cudaStreamGetCaptureInfo(stream.handle(), &status, &capture, nullptr, &before, &edges,
                                   &count));
  if (status != cudaStreamCaptureStatusActive || count != 1) return {};
  return {.capture = capture, .node = before[0]};
}

}  // namespace

bool KernelsKnowHopper() {
  static const bool knows = [] {
    cudaFuncAttributes attributes;
    LC_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&ProbeKernel)));
    return attributes.ptxVersion >= 90;
  }();
  return knows;
}

bool MayOverlap(CudaStream& stream) {
  if (TurnedOff() || !KernelsKnowHopper()) return false;
  const CapturedKernel before = CapturedBefore(stream);
  return before.node != nullptr && before == stream.last_overlapping();
}

void NoteOverlapping(CudaStream& stream) { stream.set_last_overlapping(CapturedBefore(stream)); }

}  // namespace litecache::ops::cuda
