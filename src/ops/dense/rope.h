// Rotary position embedding.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// How the scale of rotations grows with positions: times 1 + beta * log(1 + floor(p / step)).
struct RopeGrowth {
  float beta = 0;
  float step = 1;
};

// Computes the rotations of tokens at `positions`, the same for every layer and head of a step (a
// sine and a cosine take as long as rotating twenty elements): rotations [T, 2 * half] f32,
// contiguous, becomes {scale * cos a [half], scale * sin a [half]}, angle a = positions[t] *
// inv_freq[i]. inv_freq [half] f32 comes from the model's RoPE scaling; scale is yarn's attention
// factor (1 otherwise), times what `growth` says. Angles are computed in double, since positions
// reach 1M. On a CUDA stream both spans are device memory.
void RopeRotations(Stream& stream, std::span<const int32_t> positions,
                   std::span<const float> inv_freq, float scale, const MatrixView& rotations,
                   const RopeGrowth& growth = {});

// Which dimensions of a head are rotated together, i < half: (i, i + half), or neighbours
// (2 i, 2 i + 1).
enum class RopePairs { kHalves, kNeighbours };

// Rotates the first 2 * half dimensions of every head of x [T, heads * head_dim] f32 in place by
// rotations [T, 2 * half]. For i < half and the pair (a, b) that belongs to it:
// (a, b) <- (a c - b s, b c + a s) with c = rotations[t][i], s = rotations[t][half + i].
void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs = RopePairs::kHalves);

// Queries or keys as computed by their projection: x [T, heads * head_dim] f32.
struct ProjectedHeads {
  MatrixView x;
  int64_t heads = 0;
  // [head_dim] f32: weights of an RmsNorm for each head; null: no norm.
  const float* norm = nullptr;
};

// The steps between projection and attention, in place: the norm of each head (norm.h), if there is
// one, then Rope. Takes several matrices at once, because kernels for a few rows are too short to
// launch separately.
void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations, RopePairs pairs = RopePairs::kHalves);

}  // namespace litecache::ops
