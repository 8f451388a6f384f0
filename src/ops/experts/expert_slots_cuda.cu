#include "base/error.h"
#include "ops/common/overlap.cuh"
#include "ops/experts/expert_slots_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads >= kMostExperts);

// Of each thread for which `counts` holds, the number of such threads before it. sums:
// [kThreads / 32 + 1], the last of which becomes their number.
__device__ inline int32_t RankOf(bool counts, int32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t ballot = __ballot_sync(~0u, counts);
  if (lane == 0) sums[warp] = __popc(ballot);
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t before = 0;
    for (int i = 0; i <= kThreads / 32; ++i) {
      const int32_t own = i < kThreads / 32 ? sums[i] : 0;
      sums[i] = before;
      before += own;
    }
  }
  __syncthreads();
  return sums[warp] + __popc(ballot & ((1u << lane) - 1));
}

__device__ inline uint64_t BytesOf(const ExpertSlots& slots) {
  uint64_t bytes = 0;
  for (const ExpertSlots::Part& part : slots.parts) bytes += static_cast<uint64_t>(part.bytes);
  return bytes;
}

// One block: thread i is expert i, and slot i.
__global__ void __launch_bounds__(kThreads)
    ChooseSlotsKernel(const int32_t* experts, int32_t pairs,
                      const __grid_constant__ ExpertSlots slots) {
  __shared__ int32_t is_used[kThreads], missing[kThreads], sums[kThreads / 32 + 1];
  __shared__ uint32_t used[kThreads];
  const auto i = static_cast<int32_t>(threadIdx.x);
  const auto count = static_cast<int32_t>(slots.experts);
  const auto slot_count = static_cast<int32_t>(slots.slots);
  is_used[i] = 0;
  __syncthreads();
  WaitForKernelBefore();
  LetNextKernelStart();
  for (int32_t pair = i; pair < pairs; pair += kThreads) {
    if (experts[pair] != Routing::kElsewhere) is_used[experts[pair]] = 1;
  }
  __syncthreads();
  ExpertSlotState& state = *slots.state;
  const uint32_t step = state.step + 1;
  const bool wanted = i < count && is_used[i] != 0;
  const int32_t own_slot = wanted ? state.slot_of[i] : -1;
  if (own_slot >= 0) state.used[own_slot] = step;
  const bool is_missing = wanted && own_slot < 0;
  const int32_t rank = RankOf(is_missing, sums);
  const int32_t misses = sums[kThreads / 32];
  if (is_missing) missing[rank] = i;
  const int32_t hits = __syncthreads_count(own_slot >= 0);
  // Slots that this step does not use, by how long ago they were used; equal ones by index.
  used[i] = i < slot_count ? state.used[i] : step;
  __syncthreads();
  const bool is_free = used[i] != step;
  const int32_t free_slots = __syncthreads_count(is_free);
  const int32_t moves = min(misses, free_slots);
  if (is_free && moves > 0) {
    int32_t place = 0;
    for (int32_t other = 0; other < slot_count; ++other) {
      place += used[other] < used[i] || (used[other] == used[i] && other < i) ? 1 : 0;
    }
    if (place < moves) {
      const int32_t expert = missing[place], evicted = state.expert_in[i];
      if (evicted >= 0) state.slot_of[evicted] = -1;
      state.slot_of[expert] = i;
      state.expert_in[i] = expert;
      state.used[i] = step;
      state.move[place] = {expert, i};
      for (const ExpertSlots::Part& part : slots.parts) {
        if (evicted >= 0) part.data[evicted] = part.host[evicted];
        part.data[expert] = part.slots + i * part.stride;
      }
    }
  }
  if (i == 0) {
    state.step = step;
    state.moves = moves;
    state.lookups += static_cast<uint64_t>(misses + hits);
    state.hits += static_cast<uint64_t>(hits);
    state.bytes += static_cast<uint64_t>(misses) * BytesOf(slots);
  }
}

constexpr int kMoveThreads = 256;
constexpr int kLoads = 8;  // of 16 bytes, in flight of a thread
constexpr int kPiece = kMoveThreads * kLoads * 16;

// Blocks take pieces of the moved matrices in turn.
__global__ void __launch_bounds__(kMoveThreads)
    MoveExpertsKernel(const __grid_constant__ ExpertSlots slots) {
  WaitForKernelBefore();
  LetNextKernelStart();
  const ExpertSlotState& state = *slots.state;
  const int32_t moves = __ldcg(&state.moves);
#pragma unroll
  for (const ExpertSlots::Part& part : slots.parts) {
    const int64_t pieces = (part.bytes + kPiece - 1) / kPiece;
    for (int64_t piece = blockIdx.x; piece < moves * pieces; piece += gridDim.x) {
      const ExpertSlotState::Move* const move = state.move + piece / pieces;
      const auto* const from = static_cast<const std::byte*>(part.host[__ldcg(&move->expert)]);
      std::byte* const to = part.slots + __ldcg(&move->slot) * part.stride;
      const int64_t begin = piece % pieces * kPiece + static_cast<int64_t>(threadIdx.x) * 16;
      uint4 values[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = begin + i * kMoveThreads * 16;
        if (at < part.bytes) values[i] = __ldcs(reinterpret_cast<const uint4*>(from + at));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = begin + i * kMoveThreads * 16;
        if (at < part.bytes) *reinterpret_cast<uint4*>(to + at) = values[i];
      }
    }
  }
}

// One block: thread i is expert i.
__global__ void __launch_bounds__(kThreads)
    CountReadKernel(const __grid_constant__ ExpertSlots slots) {
  WaitForKernelBefore();
  LetNextKernelStart();
  ExpertSlotState& state = *slots.state;
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int missing =
      __syncthreads_count(i < static_cast<int32_t>(slots.experts) && state.slot_of[i] < 0 ? 1 : 0);
  if (i == 0) state.bytes += static_cast<uint64_t>(missing) * BytesOf(slots);
}

}  // namespace

void CountExpertsRead(CudaStream& stream, const ExpertSlots& slots) {
  LaunchOverlapping(stream, CountReadKernel, 1, kThreads, 0, slots);
}

void AdmitExperts(CudaStream& stream, const Routing& routing, const ExpertSlots& slots) {
  LC_CHECK(slots.experts >= 1 && slots.experts <= kMostExperts && slots.slots >= 0 &&
               slots.slots <= slots.experts,
           "{} slots for {} experts", slots.slots, slots.experts);
  for (const ExpertSlots::Part& part : slots.parts) {
    LC_CHECK(part.bytes % 16 == 0 && part.stride % 16 == 0 && part.bytes <= part.stride);
  }
  const auto pairs = static_cast<int32_t>(routing.rows * routing.active);
  LaunchOverlapping(stream, ChooseSlotsKernel, 1, kThreads, 0, routing.experts, pairs, slots);
  if (slots.slots == 0) return;
  LaunchOverlapping(stream, MoveExpertsKernel, static_cast<unsigned>(stream.sm_count()),
                    kMoveThreads, 0, slots);
}

}  // namespace litecache::ops::cuda
