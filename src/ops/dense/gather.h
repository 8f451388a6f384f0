// Gathers and copies rows of a matrix.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_view.h"
#include "device/device.h"

namespace litecache::ops {

// Row i of y = row rows[i] of x: one dtype, y.rows == rows.size(), no overlap. `rows` is memory of
// the stream's device.
void GatherRows(Stream& stream, const MatrixView& x, std::span<const int32_t> rows,
                const MatrixView& y);

// y = x: one dtype and shape, no overlap; strides may differ.
void CopyRows(Stream& stream, const MatrixView& x, const MatrixView& y);

}  // namespace litecache::ops
