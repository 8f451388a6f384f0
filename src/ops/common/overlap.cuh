// Programmatic dependent launch (sm_90): within a captured graph a kernel may start while the one
// before it still runs, prepare what does not depend on it, and then wait for it. That hides the
// launches between a decode step's many short kernels, and lets matrix products read their weights
// meanwhile.
//
// Rules:
// - A kernel launched by LaunchOverlapping calls WaitForKernelBefore() in every thread, before any
//   return and before it accesses memory that another kernel writes or reads. Once one kernel of
//   the chain has waited, all kernels before it have ended; a kernel that does not wait breaks this
//   for all that follow.
// - What the kernel before writes must not be read through the read-only path (__ldg, const
//   __restrict__): the compiler may move such loads above the wait.
// - Only constant memory such as weights may be read before the wait, and counters that no running
//   kernel uses (gemv_cuda.h, TileClaims).
// - A launch overlaps only the previous launch on its stream, if that was made by LaunchOverlapping
//   and nothing is between the two (MayOverlap): the first kernel after a join, a copy, a library
//   call or an ordinary launch starts when all of that has ended, without a special case.
#pragma once

#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace litecache::ops::cuda {

// Waits until the kernels before this one have ended and their writes are visible.
__device__ inline void WaitForKernelBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start when one thread of each block of this one has called this or ended.
// Call it at the beginning of short kernels, and in long ones when they have nothing more to read.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the kernels for this GPU are compiled for sm_90 or later: earlier ones lack these
// instructions and have less shared memory.
bool KernelsKnowHopper();

// Whether the next launch on the stream may overlap the one before it. Never, if
// LITECACHE_OVERLAP=0 is set in the environment.
bool MayOverlap(CudaStream& stream);
// Marks the last launch as one that the next may overlap.
void NoteOverlapping(CudaStream& stream);

// kernel<<<grid, block, shared_bytes>>>(arguments...).
template <typename... Parameters, typename... Arguments>
void LaunchOverlapping(CudaStream& stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                       size_t shared_bytes, Arguments&&... arguments) {
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
  NoteOverlapping(stream);
}

}  // namespace litecache::ops::cuda
