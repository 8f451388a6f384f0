// Products of rows that are normed first, as a transformer's blocks begin: one launch for a few
// rows on a GPU, where a norm alone is mostly waiting.
#pragma once

#include <span>

#include "base/matrix_view.h"
#include "device/device.h"
#include "ops/linear.h"

namespace litecache::ops {

// h = RmsNorm(x, weight) (norm.h), and where there is a second weight RmsNorm(x, second) in as many
// rows more. x [T, n] f32; h [T or 2 T, n], as products want their input (linear.h): scratch, which
// may be left as it is.
struct NormedRows {
  MatrixView x;
  const float* weight = nullptr;  // [n] f32
  const float* second = nullptr;  // [n] f32 or null
  float eps = 0;
  MatrixView h;
};

// Linear and GatedLinear of h: the same bits.
void NormedLinear(Stream& stream, const NormedRows& rows, std::span<const LinearPart> parts);
void NormedGatedLinear(Stream& stream, const NormedRows& rows, const LinearPart& gate,
                       const LinearPart& up);

}  // namespace litecache::ops
