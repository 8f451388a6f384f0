// ops/dense/soft_cap.h on a GPU; all pointers are device memory.
#pragma once

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

void SoftCap(Stream& stream, float cap, const MatrixView& x);

}  // namespace litecache::ops::cuda
