// Vectorized steps of attention on one tile of scores. Lanes are queries; every array is
// [..][width] with width a multiple of a vector, 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache::ops::cpu {

// Online softmax over a tile: scores [rows][width] become 2^(score - maximum), with `maximum`
// [width] raised to the tile's maximum; `sum` [width] is rescaled and the tile's sum is added;
// factor [width] receives the factors for earlier sums. limits [width] (null: no mask): lane l
// attends only the tile's rows below limits[l]. Returns whether any factor differs from 1.
bool SoftmaxTile(float* scores, int64_t rows, int64_t width, const int32_t* limits, float* maximum,
                 float* sum, float* factor);

// x[r][l] *= factor[l].
void ScaleRows(float* x, int64_t rows, int64_t width, const float* factor);

}  // namespace litecache::ops::cpu
