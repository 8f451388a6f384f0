#include "ops/cuda/overlap.cuh"

namespace litecache::ops::cuda {
namespace {

__global__ void ProbeKernel() {}

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
  if (!KernelsKnowHopper()) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  LC_CUDA(cudaStreamGetCaptureInfo(stream.handle(), &status, nullptr, nullptr, &before, &edges,
                                   &count));
  if (status != cudaStreamCaptureStatusActive) return true;
  if (count != 1) return false;
  cudaGraphNodeType type;
  LC_CUDA(cudaGraphNodeGetType(before[0], &type));
  return type == cudaGraphNodeTypeKernel;
}

}  // namespace litecache::ops::cuda
