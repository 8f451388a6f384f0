// The most likely token of every row of logits.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

// ids[i] = argmax of logits row i (f32; the lowest id among equals); finite[i] = 0 if a logit of
// the row is not finite. Device memory.
void ArgMax(Stream& stream, const MatrixView& logits, int32_t* ids, int32_t* finite);

}  // namespace litecache::ops::cuda
