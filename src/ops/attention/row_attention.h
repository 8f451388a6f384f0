// Attention of single tokens over selected rows at arbitrary addresses: one hybrid operation over
// sink, cached, recent and resident rows, without gathering them first (LiteCache section 5).
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/attention/softmax.h"
#include "ops/common/row_format.h"

namespace litecache::ops {

// `count` rows of `rows`: tokens (or slots) indices[0 .. count), or [begin, begin + count) if
// indices is null.
struct RowPart {
  PagedRows rows;
  const int32_t* indices = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
};

// Floats of a running softmax of m query heads over rows that another operation has attended:
// maximum [m] of scale * q.K in units of log2 e, then [m] sums of 2^(score - maximum), then
// [m][head_dim] sums of the values with these weights. An operation may weight its rows.
inline int64_t StateSize(int64_t m, int64_t head_dim) { return m * (2 + head_dim); }

// The m query heads of one KV head of one sequence's new token. q, out [m][head_dim] f32,
// contiguous. All rows of the parts are visible, each at most once; at least one row in total. The
// partial results in `states` [state_count][StateSize] are merged in. first_query: the number of
// the first of the m in the layer, for Softmax::sinks.
struct RowAttentionHead {
  const float* q = nullptr;
  float* out = nullptr;
  std::span<const RowPart> parts;
  const float* states = nullptr;
  int64_t state_count = 0;
  int64_t first_query = 0;
};

// Attends the rows for every head, group = m query heads per KV head. All rows are
// in `format` (bf16 or f32). The same arithmetic as ops/attention/attention.h for a single token;
// the order of the rows affects results only by rounding, and neither the number of threads nor
// other heads affect them.
void RowAttention(Stream& stream, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, const Softmax& softmax);

}  // namespace litecache::ops
