#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/dense/norm_cuda.h"
#include "ops/dense/rope_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRotationThreads = 64;

// Sine and cosine of an angle in the millions, as exact in f32 as the rounded double functions: the
// angle is reduced by quarter turns in double; the remainder is below pi/4. Takes a tenth of the
// double functions' instructions.
__device__ inline void SinCos(double angle, float* sine, float* cosine) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kHalfPiHigh = 1.5707963267948966192;    // nearest double
  constexpr double kHalfPiLow = 6.123233995736766036e-17;  // pi/2 minus kHalfPiHigh
  const double turns = rint(angle * kTwoOverPi);
  const double rest = fma(-turns, kHalfPiLow, fma(-turns, kHalfPiHigh, angle));
  const auto near = static_cast<float>(rest);
  const auto beyond = static_cast<float>(rest - static_cast<double>(near));
  float s, c;
  sincosf(near, &s, &c);
  const float s0 = fmaf(c, beyond, s);
  const float c0 = fmaf(-s, beyond, c);
  const int quarter = static_cast<int>(static_cast<int64_t>(turns) & 3);
  const bool swap = (quarter & 1) != 0;
  const float s1 = swap ? c0 : s0;
  const float c1 = swap ? s0 : c0;
  *sine = (quarter & 2) != 0 ? -s1 : s1;
  *cosine = quarter == 1 || quarter == 2 ? -c1 : c1;
}

// One thread per token and frequency.
__global__ void RotationsKernel(const int32_t* positions, const float* inv_freq, float scale,
                                RopeGrowth growth, float* rotations, int64_t stride, int64_t half) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t i = int64_t{blockIdx.y} * kRotationThreads + threadIdx.x;
  if (i >= half) return;
  const auto position = static_cast<double>(positions[blockIdx.x]);
  float sine, cosine;
  SinCos(position * static_cast<double>(inv_freq[i]), &sine, &cosine);
  float* row = rotations + blockIdx.x * stride;
  if (growth.beta != 0) {
    scale *= 1 + growth.beta * log1pf(floorf(static_cast<float>(position) / growth.step));
  }
  row[i] = scale * cosine;
  row[half + i] = scale * sine;
}

// Where pair i of a head's rotated dimensions is: elements i * step and i * step + distance.
struct PairPlaces {
  int32_t step, distance;
};
PairPlaces PlacesOf(RopePairs pairs, int64_t half) {
  if (pairs == RopePairs::kNeighbours) return {.step = 2, .distance = 1};
  return {.step = 1, .distance = static_cast<int32_t>(half)};
}

// A thread keeps one rotation of one token and applies it to every `teams`-th head of its block.
__global__ void RopeKernel(float* x, int64_t stride, const float* rotations,
                           int64_t rotations_stride, int64_t heads, int64_t heads_a_block,
                           int64_t head_dim, int64_t half, PairPlaces places) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t t = blockIdx.x;
  const int width = half < kThreads ? static_cast<int>(half) : kThreads;
  const int teams = kThreads / width;
  const int team = static_cast<int>(threadIdx.x) / width;
  if (team >= teams) return;
  const int64_t first = blockIdx.y * heads_a_block;
  const int64_t end = first + heads_a_block < heads ? first + heads_a_block : heads;
  const float* row = rotations + t * rotations_stride;
  for (int64_t i = static_cast<int>(threadIdx.x) % width; i < half; i += width) {
    const float cosine = row[i];
    const float sine = row[half + i];
    for (int64_t h = first + team; h < end; h += teams) {
      float* lower = x + t * stride + h * head_dim + i * places.step;
      const float a = lower[0];
      const float b = lower[places.distance];
      lower[0] = a * cosine - b * sine;
      lower[places.distance] = b * cosine + a * sine;
    }
  }
}

// Heads of up to kRotatedParts matrices: one warp per token and head, which it holds in registers.
constexpr int kHeadThreads = 128;
constexpr int kMaxHalf = 128;
constexpr int kMaxRest = 256;  // dimensions that are normed and not rotated
constexpr int kRotatedParts = 3;

struct RotatedPart {
  float* x;
  int64_t stride;
  const float* norm;
  int32_t heads;
};

struct RotateArguments {
  RotatedPart parts[kRotatedParts];
  int32_t heads;  // in all parts
  int32_t head_dim, half;
  PairPlaces places;
  float epsilon;
  const float* rotations;
  int64_t rotations_stride;
};

__global__ void __launch_bounds__(kHeadThreads) RotateHeadsKernel(const RotateArguments a) {
  LetNextKernelStart();
  WaitForKernelBefore();
  const int64_t t = blockIdx.x;
  int32_t head = static_cast<int32_t>(blockIdx.y) * (kHeadThreads / 32) +
                 static_cast<int32_t>(threadIdx.x) / 32;
  if (head >= a.heads) return;
  RotatedPart part = a.parts[0];
#pragma unroll
  for (int i = 1; i < kRotatedParts; ++i) {
    if (head < part.heads) break;
    head -= part.heads;
    part = a.parts[i];
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* x = part.x + t * part.stride + int64_t{head} * a.head_dim;
  const float* row = a.rotations + t * a.rotations_stride;

  constexpr int kPairs = kMaxHalf / 32;  // in a lane
  const int distance = a.places.distance;
  float lower[kPairs], upper[kPairs], cosine[kPairs], sine[kPairs];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = j * 32 + lane;
    if (i >= a.half) break;
    lower[j] = x[i * a.places.step];
    upper[j] = x[i * a.places.step + distance];
    cosine[j] = row[i];
    sine[j] = row[i + a.half];
    squares = fmaf(lower[j], lower[j], fmaf(upper[j], upper[j], squares));
  }
  if (part.norm != nullptr) {
    const int32_t rotated = 2 * a.half, kept = a.head_dim - rotated;
    float rest[kMaxRest / 32];
#pragma unroll
    for (int j = 0; j < kMaxRest / 32; ++j) {
      const int i = j * 32 + lane;
      if (i >= kept) break;
      rest[j] = x[rotated + i];
      squares = fmaf(rest[j], rest[j], squares);
    }
    const float mean = LaneSum(squares) / static_cast<float>(a.head_dim);
    const float factor = 1.0f / sqrtf(mean + a.epsilon);
#pragma unroll
    for (int j = 0; j < kMaxRest / 32; ++j) {
      const int i = j * 32 + lane;
      if (i >= kept) break;
      x[rotated + i] = rest[j] * factor * part.norm[rotated + i];
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = j * 32 + lane;
      if (i >= a.half) break;
      lower[j] *= factor * part.norm[i * a.places.step];
      upper[j] *= factor * part.norm[i * a.places.step + distance];
    }
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = j * 32 + lane;
    if (i >= a.half) break;
    x[i * a.places.step] = lower[j] * cosine[j] - upper[j] * sine[j];
    x[i * a.places.step + distance] = upper[j] * cosine[j] + lower[j] * sine[j];
  }
}

}  // namespace

void RopeRotations(Stream& stream, const int32_t* positions, const float* inv_freq,
                   float attention_factor, const RopeGrowth& growth, const MatrixView& rotations) {
  LC_CHECK(rotations.dtype == DType::kF32 && rotations.cols % 2 == 0);
  const int64_t half = rotations.cols / 2;
  if (rotations.rows == 0 || half == 0) return;
  const dim3 grid(static_cast<unsigned>(rotations.rows),
                  static_cast<unsigned>((half + kRotationThreads - 1) / kRotationThreads));
  LaunchOverlapping(AsCuda(stream), RotationsKernel, grid, kRotationThreads, 0, positions, inv_freq,
                    attention_factor, growth, rotations.Row<float>(0), rotations.stride, half);
}

void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs) {
  const int64_t half = rotations.cols / 2;
  if (x.rows == 0 || half == 0) return;
  CudaStream& cuda = AsCuda(stream);
  // With few tokens, there are enough blocks to give each thread one head.
  const int64_t teams = half < kThreads ? kThreads / half : 1;
  const int64_t heads_a_block = x.rows >= cuda.sm_count() ? heads : teams;
  const dim3 grid(static_cast<unsigned>(x.rows),
                  static_cast<unsigned>((heads + heads_a_block - 1) / heads_a_block));
  LaunchOverlapping(cuda, RopeKernel, grid, kThreads, 0, x.Row<float>(0), x.stride,
                    rotations.Row<const float>(0), rotations.stride, heads, heads_a_block,
                    x.cols / heads, half, PlacesOf(pairs, half));
}

void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations, RopePairs pairs) {
  const int64_t half = rotations.cols / 2;
  if (rotations.rows == 0 || half == 0 || parts.empty()) return;
  const int64_t head_dim = parts.front().x.cols / parts.front().heads;
  // The kernel holds a head's rotated dimensions, and of heads with a norm the others, too.
  const int64_t rest = head_dim - rotations.cols;
  const auto normed = [](const ProjectedHeads& part) { return part.norm != nullptr; };
  if (half > kMaxHalf || (rest > kMaxRest && std::ranges::any_of(parts, normed))) {
    for (const auto& [x, heads, norm] : parts) {
      if (norm != nullptr) RmsNorm(stream, x, norm, norm_eps, heads, x);
      cuda::Rope(stream, x, rotations, heads, pairs);
    }
    return;
  }
  for (size_t first = 0; first < parts.size(); first += kRotatedParts) {
    RotateArguments a{.head_dim = static_cast<int32_t>(head_dim),
                      .half = static_cast<int32_t>(half),
                      .places = PlacesOf(pairs, half),
                      .epsilon = norm_eps,
                      .rotations = rotations.Row<const float>(0),
                      .rotations_stride = rotations.stride};
    for (size_t i = 0; i < kRotatedParts && first + i < parts.size(); ++i) {
      const auto& [x, heads, norm] = parts[first + i];
      LC_CHECK(x.dtype == DType::kF32 && rotations.dtype == DType::kF32);
      LC_CHECK(x.rows == rotations.rows && heads >= 1 && x.cols == heads * head_dim &&
                   head_dim >= rotations.cols && rotations.cols % 2 == 0,
               "x [{}, {}], rotations [{}, {}], {} heads", x.rows, x.cols, rotations.rows,
               rotations.cols, heads);
      a.parts[i] = {.x = x.Row<float>(0),
                    .stride = x.stride,
                    .norm = norm,
                    .heads = static_cast<int32_t>(heads)};
      a.heads += static_cast<int32_t>(heads);
    }
    constexpr int kHeadsABlock = kHeadThreads / 32;
    const dim3 grid(static_cast<unsigned>(rotations.rows),
                    static_cast<unsigned>((a.heads + kHeadsABlock - 1) / kHeadsABlock));
    LaunchOverlapping(AsCuda(stream), RotateHeadsKernel, grid, kHeadThreads, 0, a);
  }
}

}  // namespace litecache::ops::cuda
