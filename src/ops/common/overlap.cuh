// Programmatic dependent launch (sm_90): within a captured graph a kernel may start while the one
// before it still runs, prepare what does not depend on it, and then wait for it itself. That hides
// the launches between a decode step's many short kernels, and lets products read their weights
// meanwhile.
//
// Rules:
// - A kernel launched by LaunchOverlapping calls WaitForKernelBefore() in every thread, before any
//   return and before it reads or writes what another kernel writes or reads. Once one kernel of
//   the chain has waited, everything before it has ended: a kernel that does not wait breaks this
//   for all that follow.
// - What the kernel before writes is not read through the read-only path (__ldg, const
// __restrict__):
//   the compiler may move such loads above the wait.
// - Only constant memory, weights that is, may be read before the wait, and counters that no kernel
//   under way touches (gemv_cuda.h, TileClaims).
// - A launch overlaps only the launch before it on its stream, where that was LaunchOverlapping's
//   and nothing else stands between (MayOverlap): the first kernel after a join, a copy, a
//   library's or an ordinarily launched kernel starts when all of that has ended, without being
//   told to.
#pragma once

#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace litecache::ops::cuda {

// Until the kernels before this one have ended and what they wrote can be read.
__device__ inline void WaitForKernelBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start when one thread of each block of this one has called this or ended: at
// the beginning of short kernels, where no more is to be read of long ones.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the kernels that run on this GPU are compiled for sm_90 or later: older ones have neither
// these instructions nor as much shared memory.
bool KernelsKnowHopper();

// Whether the next launch on the stream may overlap the one before it. The environment's
// LITECACHE_OVERLAP=0 says never.
bool MayOverlap(CudaStream& stream);
// Remembers the launch just made as one that the next may overlap.
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
