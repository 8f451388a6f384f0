// Decode attention for many short contexts in which every query head has its own rows: one warp per
// query head, with no merging. In the split kernel, the warps of a block share a pair and wait for
// each other at its end, which costs more than attending the rows of a short context.
//
// Arithmetic in f32. As many lanes as a row's keys have 16-byte pieces form a team, and each team
// attends its own rows: a lane has a piece of the keys and the same piece of the values, so that no
// lanes idle while others multiply.
#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_arrays.cuh"
#include "ops/common/online_softmax.cuh"
#include "ops/common/overlap.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kPiece = 8;  // values in 16 bytes
constexpr int kRows = 4;   // that a team has in flight
constexpr unsigned kAll = 0xffffffffu;
// Used if there are enough heads that most SMs have warps whose loads hide each other, and contexts
// are so short that waiting for the longest is cheap: a warp alone reads some 4 GB/s.
constexpr int64_t kLeastHeadsASm = 8;
constexpr int64_t kLongestContext = 2048;

struct WarpProblem {
  StepView step;
  TableAccess access;
  AttentionArrays arrays;
  int32_t heads = 0;
};

// Widens the eight bf16 values of 16 bytes.
__device__ void Widen(const uint4& piece, float (&values)[kPiece]) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) WarpKernel(const __grid_constant__ WarpProblem p) {
  constexpr int kTeam = kHeadDim / kPiece;  // lanes
  constexpr int kTeams = 32 / kTeam;
  constexpr int kPass = kTeams * kRows;  // rows
  static_assert(32 % kPass == 0);
  WaitForKernelBefore();
  const int32_t pair = static_cast<int32_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int32_t index = pair / p.heads, head = pair - index * p.heads;
  if (index >= *p.step.count) return;
  const StepSequence& sequence = p.step.sequences[index];
  const int32_t list = p.access.table.list_of_head[head];
  if (sequence.rows == 0 || list < 0) return;
  const int32_t total = sequence.past + 1;
  const RowList rows = p.access.List(sequence, list);
  const int lane = threadIdx.x % 32, team = lane / kTeam, place = lane % kTeam;
  const int32_t row = sequence.first_row, column = head * kHeadDim + place * kPiece;

  float q[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    q[i] = p.arrays.q[row * p.arrays.q_stride + column + i] * p.arrays.scale;
  }
  float maximum = -kLargestScore, sum = 0, out[kPiece] = {};
  // A lane looks up one of the next 32 rows while the previous ones are attended.
  const auto find = [&](int32_t begin) -> const std::byte* {
    return begin + lane < total ? rows.Row(begin + lane) : nullptr;
  };
  const std::byte* next = find(0);
  for (int32_t begin = 0; begin < total; begin += 32) {
    const std::byte* found = next;
    next = find(begin + 32);
#pragma unroll 1
    for (int first = 0; first < 32 && begin + first < total; first += kPass) {
      uint4 keys[kRows] = {}, values[kRows] = {};
      bool attended[kRows];
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        const auto* own = reinterpret_cast<const uint4*>(__shfl_sync(
            kAll, reinterpret_cast<unsigned long long>(found), first + u * kTeams + team));
        attended[u] = own != nullptr;
        if (attended[u]) {
          keys[u] = own[place];
          values[u] = own[kTeam + place];
        }
      }
      float scores[kRows];
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        float k[kPiece];
        Widen(keys[u], k);
        float score = 0;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) score = fmaf(q[i], k[i], score);
#pragma unroll
        for (int step = kTeam / 2; step > 0; step /= 2) {
          score += __shfl_xor_sync(kAll, score, step);
        }
        scores[u] = score;
      }
      p.arrays.cap.Apply(scores);
      float highest = maximum;
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if (attended[u]) highest = fmaxf(highest, scores[u]);
      }
      highest = fminf(highest, kLargestScore);
      const float factor = Exp2(maximum - highest);
      maximum = highest;
      sum *= factor;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) out[i] *= factor;
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        const float probability = attended[u] ? CarefulExp2(scores[u] - highest) : 0.0f;
        float v[kPiece];
        Widen(values[u], v);
        sum += probability;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) out[i] = fmaf(probability, v[i], out[i]);
      }
    }
  }
  LetNextKernelStart();
  // Merges the teams' results in an order that does not depend on the lane.
  float largest = maximum;
#pragma unroll
  for (int step = kTeam; step < 32; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
  }
  const float factor = Exp2(maximum - largest);
  sum *= factor;
#pragma unroll
  for (int step = kTeam; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    out[i] *= factor;
#pragma unroll
    for (int step = kTeam; step < 32; step *= 2) out[i] += __shfl_xor_sync(kAll, out[i], step);
  }
  if (team != 0) return;
  const float all = p.arrays.WithSink(column, largest, sum);
#pragma unroll
  for (int i = 0; i < kPiece; i += 2) {
    p.arrays.Store(row, column + i, out[i] / all, out[i + 1] / all);
  }
  if (place == 0) p.arrays.StoreLogSum(row, head * kHeadDim, largest, sum);
}

template <int kHeadDim>
void Launch(CudaStream& stream, const WarpProblem& problem) {
  const int64_t pairs = static_cast<int64_t>(problem.step.capacity) * problem.heads;
  LaunchOverlapping(stream, WarpKernel<kHeadDim>,
                    static_cast<unsigned>((pairs + kWarps - 1) / kWarps), kThreads, 0, problem);
}

}  // namespace

bool WarpAttentionServes(Stream& stream, const StepView& step, int64_t kv_heads,
                         const RowTable& table, int64_t q_heads) {
  return q_heads == kv_heads && (table.format.head_dim == 64 || table.format.head_dim == 128) &&
         step.max_context <= kLongestContext &&
         step.capacity * kv_heads >= kLeastHeadsASm * AsCuda(stream).sm_count();
}

void WarpAttention(Stream& stream, const StepView& step, int64_t kv_heads, const RowTable& table,
                   const AttentionOperands& operands) {
  WarpProblem p;
  p.step = step;
  p.access = TableAccess(table);
  p.arrays = AttentionArrays(operands, kv_heads, table.format.head_dim);
  p.heads = static_cast<int32_t>(kv_heads);
  CudaStream& cuda = AsCuda(stream);
  table.format.head_dim == 64 ? Launch<64>(cuda, p) : Launch<128>(cuda, p);
}

}  // namespace litecache::ops::cuda
