// Few-row products where the GPU has bulk copies (sm_90): one block an SM has an even share of all
// outputs (any number of rows of the weights: no SM waits for another's tail). One warp keeps a
// ring of stages in shared memory full, a bulk copy a row; the others multiply with tensor cores.
// That holds 96 KiB an SM in flight, three times what its share of the memory's rate needs.
//
// The launch may overlap the kernel before it (programmatic dependent launch): weights are constant
// for the life of a stream, so their first stages are on the way before that kernel has ended. All
// else waits for it.
//
// How lanes hold operands: gemv.cu.
#include <algorithm>

#include "device/cuda/check.h"
#include "ops/cuda/gemv_parts.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/shared_memory.cuh"
#include "ops/cuda/tensor_core.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 8;  // that multiply
constexpr int kThreads = (kWarps + 1) * 32;
constexpr int kGroup = 32;  // outputs of a stage at most: one a lane of the copier
// Elements of the depth in a stage. An SM starts a bulk copy every 45 ns or so, however small.
constexpr int kSegment = 512;
// A row in a stage. With the padding, eight rows' chunks of one step are in different banks.
constexpr int kPitch = kSegment * 2 + 64;
constexpr int kMaxStages = 8;
// Two blocks fit an SM: the next product's first stages fill while this one ends.
constexpr size_t kSharedBytes = size_t{112} << 10;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}
__device__ inline void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(
          barrier),
      "r"(bytes)
      : "memory");
}
__device__ inline void WaitFor(uint32_t barrier, int parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}
__device__ inline void CopyBulk(uint32_t shared, const void* source, uint32_t bytes,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline uint4 LoadShared(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

#endif

// Shared memory: barriers, sums [kWarps][rows][kGroup], stages of kGroup rows of weights and then
// `rows` of x.
__global__ void __launch_bounds__(kThreads)
    BulkGemvKernel(const __grid_constant__ GemvArguments a, int32_t outputs, int stages) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kOutputs = 8;  // of one product
  constexpr int kDepth = 32;   // elements of the depth that a warp takes in a step
  constexpr int kChunk = 8;    // elements of a lane in a step: 16 bytes
  constexpr int kTiles = kGroup / kOutputs;
  constexpr int kSteps = kSegment / kDepth / kWarps;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[2 * kMaxStages];
  auto* sums = reinterpret_cast<float*>(shared);
  const uint32_t ring = SharedAddress(shared) + static_cast<uint32_t>(kWarps * a.rows * kGroup * 4);
  const int stage_bytes = (kGroup + a.rows) * kPitch;
  const auto full = [&](int stage) { return SharedAddress(&barriers[stage]); };
  const auto empty = [&](int stage) { return SharedAddress(&barriers[kMaxStages + stage]); };
  const auto stage_at = [&](int stage) {
    return ring + static_cast<uint32_t>(stage * stage_bytes);
  };

  LetNextKernelStart();
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      InitBarrier(full(s), 1);
      InitBarrier(empty(s), kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto share = [&](int64_t block) {
    return static_cast<int32_t>(block * outputs / static_cast<int64_t>(gridDim.x));
  };
  const int32_t first = share(blockIdx.x);
  const int32_t own = share(int64_t{blockIdx.x} + 1) - first;
  const int32_t groups = (own + kGroup - 1) / kGroup;
  const auto group_at = [&](int32_t group) {
    return first + static_cast<int32_t>(int64_t{own} * group / groups);
  };
  const int32_t segments = (a.depth + kSegment - 1) / kSegment;

  if (warp == kWarps) {
    const __nv_bfloat16* row = nullptr;  // of this lane, in the current group
    int32_t count = 0;
    const auto bytes_of = [&](int32_t segment) {
      return static_cast<uint32_t>(2 * min(kSegment, a.depth - segment * kSegment));
    };
    const auto copy_weights = [&](int32_t group, int32_t segment, int stage) {
      if (segment == 0) {
        const int32_t begin = group_at(group);
        count = group_at(group + 1) - begin;
        if (lane < count) {
          const GemvTarget& target = TargetOf(a, begin + lane);
          row = target.weight + (begin + lane - target.first) * target.stride;
        }
      }
      const uint32_t bytes = bytes_of(segment);
      if (lane == 0) {
        ArriveAndExpect(full(stage), static_cast<uint32_t>(count + a.rows) * bytes);
      }
      __syncwarp();
      if (lane < count) {
        CopyBulk(stage_at(stage) + static_cast<uint32_t>(lane * kPitch), row + segment * kSegment,
                 bytes, full(stage));
      }
    };
    const auto copy_x = [&](int32_t segment, int stage) {
      if (lane < a.rows) {
        CopyBulk(stage_at(stage) + static_cast<uint32_t>((kGroup + lane) * kPitch),
                 a.x + lane * a.x_stride + segment * kSegment, bytes_of(segment), full(stage));
      }
    };
    const int32_t total = groups * segments;
    const int32_t ahead = min(stages, total);
    int32_t group = 0, segment = 0;
    const auto next = [&] {
      if (++segment == segments) {
        segment = 0;
        ++group;
      }
    };
    for (int32_t i = 0; i < ahead; ++i, next()) copy_weights(group, segment, i);
    WaitForKernelBefore();
    for (int32_t i = 0; i < ahead; ++i) copy_x(i % segments, i);
    int stage = 0, parity = 0;
    for (int32_t i = ahead; i < total; ++i, next()) {
      WaitFor(empty(stage), parity);
      copy_weights(group, segment, stage);
      copy_x(segment, stage);
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    return;
  }

  WaitForKernelBefore();  // y may be read or written by it
  const int g = lane / 4;
  const int q = lane % 4;
  const bool has0 = g < a.rows;
  const auto w_offset = static_cast<uint32_t>(g * kPitch);
  const auto x_offset = static_cast<uint32_t>((kGroup + g) * kPitch);
  int stage = 0, parity = 0;
  for (int32_t group = 0; group < groups; ++group) {
    const int32_t begin = group_at(group);
    const int32_t count = group_at(group + 1) - begin;
    float sum[kTiles][4] = {};
    for (int32_t segment = 0; segment < segments; ++segment) {
      WaitFor(full(stage), parity);
      const uint32_t at = stage_at(stage);
      const int32_t left = a.depth - segment * kSegment;
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        const int k = (warp * kSteps + u) * kDepth;
        if (k >= left) break;
        const int from = k + q * kChunk;
        const auto byte = static_cast<uint32_t>(from * 2);
        const uint4 zero = {0, 0, 0, 0};
        const bool present = from < left;  // all 8 or none
        const uint4 low = has0 && present ? LoadShared(at + x_offset + byte) : zero;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          // Outputs of a tile past the last are whatever was there, and dropped.
          if (j * kOutputs >= count) break;
          const uint4 w =
              present
                  ? LoadShared(at + w_offset + static_cast<uint32_t>(j * kOutputs * kPitch) + byte)
                  : zero;
          GemvMultiply(sum[j], low.x, low.y, 0, 0, w.x, w.y);
          GemvMultiply(sum[j], low.z, low.w, 0, 0, w.z, w.w);
        }
      }
      __syncwarp();
      if (lane == 0) Arrive(empty(stage));
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    // Lane 4 g + q has row g and outputs 2q and 2q + 1; rows g + 8 are zeros.
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!has0) break;
      float* at = sums + (warp * a.rows + g) * kGroup + j * kOutputs + 2 * q;
      *reinterpret_cast<float2*>(at) = {sum[j][0], sum[j][1]};
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
    for (int e = static_cast<int>(threadIdx.x); e < a.rows * kGroup; e += kWarps * 32) {
      const int32_t output = begin + e % kGroup;
      if (e % kGroup >= count) continue;
      float value = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) value += sums[i * a.rows * kGroup + e];
      const GemvTarget& target = TargetOf(a, output);
      StoreSum(a, target, e / kGroup, output - target.first, value);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
  }
#endif
}

}  // namespace

bool BulkGemvServes(int64_t rows) { return rows <= kMaxBulkRows && KernelsKnowHopper(); }

void BulkGemv(CudaStream& stream, GemvArguments& a) {
  static const size_t most = AllowSharedMemory(&BulkGemvKernel);
  int32_t outputs = 0;
  for (int i = 0; i < a.count; ++i) {
    a.targets[i].first = outputs;
    outputs += a.targets[i].outputs;
  }
  const int32_t blocks = std::min(outputs, stream.sm_count());
  const int32_t own = (outputs + blocks - 1) / blocks;
  const int64_t needed =
      int64_t{(own + kGroup - 1) / kGroup} * ((a.depth + kSegment - 1) / kSegment);
  const size_t sums = sizeof(float) * kWarps * kGroup * static_cast<size_t>(a.rows);
  const size_t stage = static_cast<size_t>(kGroup + a.rows) * kPitch;
  const auto fit = static_cast<int64_t>((std::min(kSharedBytes, most) - sums) / stage);
  const int stages = static_cast<int>(std::min<int64_t>({kMaxStages, needed, fit}));
  LaunchOverlapping(BulkGemvKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                    sums + static_cast<size_t>(stages) * stage, stream, a, outputs, stages);
}

}  // namespace litecache::ops::cuda
