#include "device/cuda/step_condition.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "device/cuda/check.h"

namespace litecache {
namespace {

struct Capture {
  cudaGraph_t graph = nullptr;  // null: the stream records nothing
  std::vector<cudaGraphNode_t> before;
};

Capture CaptureOf(const CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  LC_CUDA(cudaStreamGetCaptureInfo(stream.handle(), &status, nullptr, &capture.graph, &before,
                                   &edges, &count));
  if (status != cudaStreamCaptureStatusActive) return {};
  capture.before.assign(before, before + count);
  return capture;
}

}  // namespace

StepCondition ConditionalSteps::Begin(Stream& stream) const {
  const Capture capture = CaptureOf(AsCuda(stream));
  if (capture.graph == nullptr) return {};
  cudaGraphConditionalHandle handle = 0;
  LC_CUDA(cudaGraphConditionalHandleCreate(&handle, capture.graph, /*defaultLaunchValue=*/0,
                                           cudaGraphCondAssignDefault));
  return {.handle = handle, .exists = true};
}

void ConditionalSteps::Run(Stream& stream, const StepCondition& condition,
                           const std::function<void(Stream&)>& body) {
  if (!condition.exists) return body(stream);
  const CudaStream& main = AsCuda(stream);
  const Capture capture = CaptureOf(main);
  cudaGraphNodeParams parameters = {};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = condition.handle;
  parameters.conditional.type = cudaGraphCondTypeIf;
  parameters.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  LC_CUDA(cudaGraphAddNode(&node, capture.graph, capture.before.data(), nullptr,
                           capture.before.size(), &parameters));
  LC_CUDA(cudaStreamUpdateCaptureDependencies(main.handle(), &node, nullptr, 1,
                                              cudaStreamSetCaptureDependencies));
  // Not on the stream of a part of the SMs: such a graph cannot be instantiated.
  const CudaStream& inside = AsCuda(*body_);
  LC_CUDA(cudaStreamBeginCaptureToGraph(inside.handle(), parameters.conditional.phGraph_out[0],
                                        nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t captured = nullptr;
  try {
    body(*body_);
  } catch (...) {
    cudaStreamEndCapture(inside.handle(), &captured);
    cudaGetLastError();
    throw;
  }
  LC_CUDA(cudaStreamEndCapture(inside.handle(), &captured));
}

}  // namespace litecache
