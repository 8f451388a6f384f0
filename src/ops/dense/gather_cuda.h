// ops/dense/gather.h on a GPU.
#pragma once

#include <cstdint>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops::cuda {

void GatherRows(Stream& stream, const MatrixView& x, const int32_t* rows, const MatrixView& y);
void CopyRows(Stream& stream, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops::cuda
