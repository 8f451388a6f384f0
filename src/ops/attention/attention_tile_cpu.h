// Vector steps of attention on one tile of scores. Lanes are queries; every array is
// [..][width] with width a multiple of a vector, 64-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litecache::ops::cpu {

// Online softmax over a tile: scores [rows][width] become 2^(score - maximum), where `maximum`
// [width] is raised to the tile's; `sum` [width] is scaled to it and the tile's added; factor
// [width] receives what earlier sums have to be multiplied by. limits [width] (null: no mask): lane
// l sees the tile's rows below limits[l] only. Returns whether any factor is not 1.
bool SoftmaxTile(float* scores, int64_t rows, int64_t width, const int32_t* limits, float* maximum,
                 float* sum, float* factor);

// x[r][l] *= factor[l].
void ScaleRows(float* x, int64_t rows, int64_t width, const float* factor);

}  // namespace litecache::ops::cpu
