// Selection by the rows' exact attention scores, which the other selections approximate.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/common/row_format.h"
#include "ops/select/selection.h"

namespace litecache::ops {

// Score: the sum over the group's query heads of softmax(scale * q.K) over the candidates, products
// and sums in f32. Rows of any format. selection.scores: [end - begin].
struct ExactSelectWork {
  const float* q = nullptr;  // [group][head_dim]
  float scale = 0;           // > 0
  float cap = 0;             // of scale * q.K (Softmax::cap); 0: none
  PagedRows rows;
  Selection selection;
};
void ExactSelect(Stream& stream, int64_t group, std::span<ExactSelectWork> work);

}  // namespace litecache::ops
