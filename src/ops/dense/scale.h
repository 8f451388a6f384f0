// Multiples of activations, for models that scale embeddings, residuals or logits.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// x *= factor; with 0 all of x is 0, also what was not finite. x [T, n] f32.
void Scale(Stream& stream, float factor, const MatrixView& x);

// x *= *factor, which is memory of the stream's device.
void ScaleBy(Stream& stream, const float* factor, const MatrixView& x);

// y += factor * x. x, y [T, n] f32, not overlapping.
void AddScaled(Stream& stream, float factor, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops
