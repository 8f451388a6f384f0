// Multiplies keys by a head's small matrix.
#pragma once

#include <cstdint>

namespace litecache::ops::cpu {

// y[r][j] = sum over c < depth of x[r * stride + c] * weight[c * width + j], r < rows, j < width; y
// [rows][width]. width is a multiple of 16. Every sum is one chain in ascending c: a row's result
// does not depend on the other rows.
void Project(const float* x, int64_t stride, int64_t rows, int64_t depth, const float* weight,
             int64_t width, float* y);

}  // namespace litecache::ops::cpu
