// KVPR's scheduler: for how many leading tokens rows are recomputed while the others are
// transferred (KVPR section 3.3, eq. 9 to 12). Pure functions of costs.
#pragma once

#include <cstdint>

#include "kv/offload/recompute.h"

namespace litecache::kv::kvpr {

// Bytes and operations for one token in one layer.
struct TokenWork {
  double input_bytes = 0;  // the layer's input, over the link (M_X / l)
  double row_bytes = 0;    // keys and values of all KV heads, over the link (M_KV / (s - l))
  double flops = 0;        // of the products that compute keys and values (N / l)
};

// Seconds for one token in one layer. A batch multiplies all of them, which changes no decision.
struct TokenCosts {
  double input = 0;      // M_X / (l v_com)
  double row = 0;        // M_KV / ((s - l) v_com)
  double recompute = 0;  // N / (l v_gpu)
  // Seconds per sequence rather than per token: its share of the device's other work for the layer.
  // Not part of eq. 11.
  double other = 0;
};

TokenCosts CostsOf(const TokenWork& work, double link_bytes_per_second, double flops_per_second);

// If inputs are no smaller than the rows they produce (grouped queries, low-bit rows), every
// recomputed token lengthens the transfer: l* = 0 at any speed.
inline bool NeverRecomputes(const TokenWork& work) { return work.input_bytes >= work.row_bytes; }

// Seconds for a layer if the first `split` of `tokens` tokens are recomputed. Eq. 11: inputs are
// transferred, then recomputation overlaps with the transfer of rows. chunked: recomputation also
// overlaps with the inputs' transfer, and the layer's other work with the next layer's transfers:
// the bound max(other + recompute, inputs + rows).
double TransferTime(const TokenCosts& costs, bool chunked, int64_t split, int64_t tokens);

// l* of eq. 12: the split in [0, tokens] with the least TransferTime, the smallest of equals.
int64_t BestSplit(const TokenCosts& costs, bool chunked, int64_t tokens);

// Places about `split` recomputed tokens of `tokens` on a GPU whose pages hold rows of `page`
// tokens. Rows that fill parts of pages are scattered and slow to transfer; inputs are not. So a
// partly filled last page is recomputed, and the rest starts at the first token and is a multiple
// of kSplitUnit tokens (of a page, if smaller). first_only: nothing from the last page.
inline constexpr int64_t kSplitUnit = 16;
offload::Recomputed PlaceSplit(int64_t split, int64_t tokens, int64_t page, bool first_only);

}  // namespace litecache::kv::kvpr
