#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/recurrence/gated_delta.h"
#include "ops/recurrence/gated_delta_parts.cuh"
#include "ops/rows/paged_rows.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kConvolveThreads = 128;  // of a block, each with a channel
constexpr int kConvolveRows = 32;      // of a block
constexpr int kLoads = 4;              // rows that a thread has in flight

// The input of token `t` of a sequence's step; of those before it, t < 0, from the history.
__device__ inline float InputOf(const ConvolveArguments& a, const StepSequence& sequence,
                                int32_t channel, int32_t t) {
  if (t >= 0) return a.qkv[sequence.first_row + t][channel];
  const int32_t at = a.taps - 1 + t;
  if (sequence.past == 0 || at < 0) return 0;
  return a.states.Of(sequence)[int64_t{at} * a.channels + channel];
}

// kTaps >= taps: the oldest are zeros.
template <int kTaps>
struct Filter {
  float taps[kTaps];
  float inputs[kTaps];  // the newest last

  // Reads only constant memory.
  __device__ Filter(const ConvolveArguments& a, int32_t channel) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const int32_t at = a.taps - kTaps + i;
      taps[i] = at >= 0 ? a.filter[int64_t{channel} * a.taps + at] : 0.0f;
    }
  }
  // The inputs before token t.
  __device__ void Begin(const ConvolveArguments& a, const StepSequence& sequence, int32_t channel,
                        int32_t t) {
#pragma unroll
    for (int i = 1; i < kTaps; ++i) {
      inputs[i] = kTaps - i < a.taps ? InputOf(a, sequence, channel, t - kTaps + i) : 0.0f;
    }
  }
  __device__ float Next(float input) {
#pragma unroll
    for (int i = 1; i < kTaps; ++i) inputs[i - 1] = inputs[i];
    inputs[kTaps - 1] = input;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) sum = fmaf(taps[i], inputs[i], sum);
    return Silu(sum);
  }
};

// One row of a sequence, whose history this block's threads have to themselves.
template <int kTaps>
__global__ void __launch_bounds__(kConvolveThreads) ConvolveRowKernel(const ConvolveArguments a) {
  LetNextKernelStart();
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvolveThreads + threadIdx.x);
  const bool exists = channel < a.channels;
  Filter<kTaps> filter(a, exists ? channel : 0);
  WaitForKernelBefore();
  if (!exists || static_cast<int32_t>(blockIdx.y) >= *a.states.step.count) return;
  const StepSequence& sequence = a.states.step.sequences[blockIdx.y];
  filter.Begin(a, sequence, channel, 0);
  const float y = filter.Next(a.qkv[sequence.first_row][channel]);
  a.convolved[sequence.first_row][channel] = y;
  float* history = a.states.Of(sequence) + channel;
#pragma unroll
  for (int i = 1; i < kTaps; ++i) {
    const int32_t at = a.taps - kTaps + i - 1;
    if (at >= 0) history[int64_t{at} * a.channels] = filter.inputs[i];
  }
}

// A tile of rows, whichever sequences they are of.
template <int kTaps>
__global__ void __launch_bounds__(kConvolveThreads) ConvolveKernel(const ConvolveArguments a) {
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvolveThreads + threadIdx.x);
  const bool exists = channel < a.channels;  // SequenceOfRow() needs whole warps
  Filter<kTaps> filter(a, exists ? channel : 0);
  WaitForKernelBefore();
  int32_t row = static_cast<int32_t>(blockIdx.y) * kConvolveRows;
  const int32_t end = min(row + kConvolveRows, a.rows);
  while (row < end) {
    const int32_t index = SequenceOfRow(a.states.step, row);
    if (index < 0) {
      ++row;
      continue;
    }
    const StepSequence& sequence = a.states.step.sequences[index];
    const int32_t sequence_end = min(end, sequence.first_row + sequence.rows);
    if (exists) {
      filter.Begin(a, sequence, channel, row - sequence.first_row);
      for (int32_t r = row; r < sequence_end; r += kLoads) {
        float x[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          if (r + i < sequence_end) x[i] = a.qkv[r + i][channel];
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          if (r + i < sequence_end) a.convolved[r + i][channel] = filter.Next(x[i]);
        }
      }
    }
    row = sequence_end;
  }
}

// The histories after ConvolveKernel(), all of whose blocks read the old ones.
__global__ void __launch_bounds__(kConvolveThreads) HistoryKernel(const ConvolveArguments a) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvolveThreads + threadIdx.x);
  if (channel >= a.channels || static_cast<int32_t>(blockIdx.y) >= *a.states.step.count) return;
  const StepSequence& sequence = a.states.step.sequences[blockIdx.y];
  constexpr int kMost = kMostDeltaTaps - 1;
  float inputs[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < a.taps - 1) inputs[i] = InputOf(a, sequence, channel, sequence.rows - a.taps + 1 + i);
  }
  float* history = a.states.Of(sequence) + channel;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < a.taps - 1) history[int64_t{i} * a.channels] = inputs[i];
  }
}

}  // namespace

void Convolve(CudaStream& stream, const ConvolveArguments& a, bool single_rows) {
  LC_CHECK(a.rows <= 65535 * kConvolveRows, "{} rows", a.rows);  // the grid's limit
  const int32_t pieces = (a.channels + kConvolveThreads - 1) / kConvolveThreads;
  const auto x = static_cast<unsigned>(pieces);
  const dim3 sequences(x, static_cast<unsigned>(a.states.step.capacity));
  if (single_rows) {
    LaunchOverlapping(stream,
                      a.taps <= 4 ? ConvolveRowKernel<4> : ConvolveRowKernel<kMostDeltaTaps>,
                      sequences, kConvolveThreads, 0, a);
    return;
  }
  const dim3 tiles(x, static_cast<unsigned>((a.rows + kConvolveRows - 1) / kConvolveRows));
  LaunchOverlapping(stream, a.taps <= 4 ? ConvolveKernel<4> : ConvolveKernel<kMostDeltaTaps>, tiles,
                    kConvolveThreads, 0, a);
  if (a.taps > 1) LaunchOverlapping(stream, HistoryKernel, sequences, kConvolveThreads, 0, a);
}

}  // namespace litecache::ops::cuda
