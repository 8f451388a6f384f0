// The decisions of policy kvpr, and the sizes of its recomputation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kv/cache.h"

namespace litecache::kv::offload {

// Recomputed tokens of a sequence of `past` tokens: [0, first) and [past - last, past); at most
// past in total.
struct Recomputed {
  int64_t first = 0, last = 0;
};

struct Recompute {
  // The optimal number of recomputed tokens, 0 to past, for a sequence of `past` tokens in a step
  // of `sequences` decode sequences.
  std::function<int64_t(int64_t past, int64_t sequences)> split;
  // Places about `split` recomputed tokens. On the CPU `last` is 0.
  std::function<Recomputed(int64_t split, int64_t past)> place;
  // Upper bound of the inputs that place() uses, counted from the first token, for sequences of up
  // to `tokens` tokens.
  std::function<int64_t(int64_t tokens)> largest_split;
  // Start recomputing when the first inputs arrive rather than when all have.
  bool chunked = true;
};

// The split of the step's next sequence. `over` (0 before the first one) is by how much `place` has
// exceeded the optimum so far; this sequence compensates for it, so that the step's total is
// optimal.
inline Recomputed NextSplit(const Recompute& recompute, int64_t past, int64_t sequences,
                            int64_t* over) {
  const int64_t wanted = recompute.split(past, sequences);
  const Recomputed placed = recompute.place(std::clamp<int64_t>(wanted - *over, 0, past), past);
  *over += placed.first + placed.last - wanted;
  return placed;
}

// Tokens whose inputs are transferred and whose rows are recomputed together. On a GPU they are
// tokens of several sequences: a product of few rows leaves most of it idle.
inline constexpr int64_t kRecomputeTokens = 256, kGpuRecomputeTokens = 2048;
// Number of streams that recompute at the same time on a GPU.
inline constexpr size_t kRecomputeLanes = 2;
// The products have a multiple of this many rows (pieces.h).
inline constexpr int64_t kGpuRecomputeUnit = 256;

// Bytes of scratch outside the tiers: inputs, keys and values of the tokens that are recomputed
// together, on a GPU also the keys' rotations and the positions of all `tokens` that a step
// recomputes.
inline uint64_t RecomputeScratchBytes(const Layout& layout, int64_t tokens, bool on_gpu) {
  const auto hidden = static_cast<uint64_t>(layout.hidden);
  const auto width = static_cast<uint64_t>(layout.kv_heads * layout.head_dim);
  if (on_gpu) {
    if (tokens == 0) return 0;
    // Positions of the current step and the next one, with room for contexts twice as long.
    return 2 * static_cast<uint64_t>(2 * tokens + kGpuRecomputeUnit) * sizeof(int32_t) +
           kRecomputeLanes * static_cast<uint64_t>(kGpuRecomputeTokens) *
               (hidden * SizeOf(layout.dtype) +
                (2 * width + static_cast<uint64_t>(layout.head_dim)) * sizeof(float));
  }
  return static_cast<uint64_t>(kRecomputeTokens) * (hidden + 2 * width) * sizeof(float);
}

}  // namespace litecache::kv::offload
