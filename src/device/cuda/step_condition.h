// Operations of a recorded step that run only if a kernel of the same step has asked for them: a
// conditional node (CUDA 12.4). Where nothing asks, one costs 2.5 to 5 us instead of the 2 us of
// each of its kernels (H200, lab/notes/gpu/litecache.md).
#pragma once

#include <functional>

#include "device/cuda/cuda_device.h"

namespace litecache {

// What a kernel needs to ask.
struct StepCondition {
  unsigned long long handle = 0;
  bool exists = false;  // otherwise the operations run in any case

#ifdef __CUDACC__
  __device__ void Ask() const {
    if (exists) cudaGraphSetConditional(handle, 1);
  }
#endif
};

class ConditionalSteps {
 public:
  explicit ConditionalSteps(CudaDevice& device) : body_(device.CreateStream()) {}

  // A condition of the step that `stream` records, for kernels launched from here on; if it records
  // none, one that does not exist.
  StepCondition Begin(Stream& stream) const;
  // Issues the operations of `body` if a kernel asks for them, in the order of `stream`: body gets
  // the stream for its operations, which run on all SMs. They must be kernels, copies or memory
  // sets on this one stream.
  void Run(Stream& stream, const StepCondition& condition,
           const std::function<void(Stream&)>& body);

 private:
  std::unique_ptr<Stream> body_;
};

}  // namespace litecache
