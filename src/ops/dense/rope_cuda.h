// ops/dense/rope.h on a GPU; all pointers are device memory, including positions.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/dense/rope.h"

namespace litecache::ops::cuda {

// RopeRotations runs once per step, Rope in place for every x. positions [T] and inv_freq
// [rotations.cols / 2] are device memory; inv_freq is f32.
void RopeRotations(Stream& stream, const int32_t* positions, const float* inv_freq,
                   float attention_factor, const RopeGrowth& growth, const MatrixView& rotations);
void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs);
// One launch for every three parts, with up to 256 rotated dimensions; a part whose heads are
// normed but only partly rotated has two launches of its own.
void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations, RopePairs pairs);

}  // namespace litecache::ops::cuda
