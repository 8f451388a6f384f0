// KVPR's scheduler: how many of the first tokens' rows are recomputed while the others travel
// (KVPR section 3.3, eq. 9 to 12). Pure functions of costs.
#pragma once

#include <cstdint>

#include "kv/offload/recompute.h"

namespace litecache::kv::kvpr {

// Bytes and operations of one token in one layer.
struct TokenWork {
  double input_bytes = 0;  // the layer's input, on the link (M_X / l)
  double row_bytes = 0;    // keys and values of all KV heads, on the link (M_KV / (s - l))
  double flops = 0;        // of the products that make keys and values (N / l)
};

// Seconds of one token in one layer. A batch multiplies all of them, and changes no decision.
struct TokenCosts {
  double input = 0;      // M_X / (l v_com)
  double row = 0;        // M_KV / ((s - l) v_com)
  double recompute = 0;  // N / (l v_gpu)
  // Not of a token but of a sequence: its share of what the device does for the layer beside
  // recomputation. Eq. 11 knows none of it.
  double other = 0;
};

TokenCosts CostsOf(const TokenWork& work, double link_bytes_per_second, double flops_per_second);

// With inputs no smaller than the rows they make (grouped queries, rows in few bits), every token
// that is recomputed lengthens the transfer: l* = 0 at any speeds.
inline bool NeverRecomputes(const TokenWork& work) { return work.input_bytes >= work.row_bytes; }

// Seconds that a layer takes when of `tokens` tokens the first `split` are recomputed.
// Eq. 11: inputs travel, then recomputation runs beside the rows' transfer. chunked: it runs beside
// the inputs' transfer, too, and the layer's other work beside the next one's transfers: the bound
// max(other + recompute, inputs + rows).
double TransferTime(const TokenCosts& costs, bool chunked, int64_t split, int64_t tokens);

// l* of eq. 12: the split in [0, tokens] of the least TransferTime, the smallest of equals.
int64_t BestSplit(const TokenCosts& costs, bool chunked, int64_t tokens);

// Which `split` of `tokens` tokens, or nearly as many, are recomputed on a GPU, whose pages hold
// rows of `page` tokens. Rows that fill parts of pages lie in many places and are slow to move;
// inputs are not. So they are those that the last page holds, where it is not full, and others from
// the first one on; of these a multiple of kSplitUnit tokens (of a page, where that is fewer).
// first_only: none of the last page.
inline constexpr int64_t kSplitUnit = 16;
offload::Recomputed PlaceSplit(int64_t split, int64_t tokens, int64_t page, bool first_only);

}  // namespace litecache::kv::kvpr
