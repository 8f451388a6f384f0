// Twins of ops/dense/rope.h on a GPU; all memory is the device's, positions too.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/dense/rope.h"

namespace litecache::ops::cuda {

// Once a step, then in place for every x. positions device, [T]; inv_freq device,
// [rotations.cols / 2]. f32.
void RopeRotations(Stream& stream, const int32_t* positions, const float* inv_freq,
                   float attention_factor, const MatrixView& rotations);
void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads);
// One launch for every two parts of head_dim up to 256.
void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations);

}  // namespace litecache::ops::cuda
