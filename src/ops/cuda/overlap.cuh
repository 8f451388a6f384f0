// Programmatic dependent launch: a kernel starts while the one before it on the stream still runs,
// and waits for it itself, once it has prepared what does not depend on it. Closes the gaps between
// a decode step's many short kernels.
#pragma once

#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace litecache::ops::cuda {

// Until the kernels before this one have ended and what they wrote can be read. Every thread of a
// kernel launched by LaunchOverlapping must call this before it reads or writes anything that
// another kernel writes or reads: a kernel's end then says that all before it have ended.
__device__ inline void WaitForKernelBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start (if it is launched by LaunchOverlapping) when all blocks of this one
// have called this or ended.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the kernels that run on this GPU are compiled for sm_90 or later: older ones have neither
// these instructions nor bulk copies.
bool KernelsKnowHopper();

// Whether the next launch on the stream may overlap what stands before it. A captured graph has
// such edges between two kernels only.
bool MayOverlap(CudaStream& stream);

template <typename... Parameters, typename... Arguments>
void LaunchOverlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                       CudaStream& stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle();
  config.attrs = &attribute;
  config.numAttrs = MayOverlap(stream) ? 1 : 0;
  LC_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace litecache::ops::cuda
