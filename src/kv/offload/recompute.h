// What policy kvpr decides, and how much of it is done at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kv/cache.h"

namespace litecache::kv::offload {

// Of a sequence of `past` tokens, those whose rows are recomputed: [0, first), and [past - last,
// past); together no more than past.
struct Recomputed {
  int64_t first = 0, last = 0;
};

struct Recompute {
  // Of a sequence of `past` tokens in a decode step of `sequences`: how many tokens' rows are best
  // recomputed, 0 to past.
  std::function<int64_t(int64_t past, int64_t sequences)> split;
  // Which: so many or nearly so. On the CPU `last` is 0.
  std::function<Recomputed(int64_t split, int64_t past)> place;
  // The most inputs that place() asks for, counted from the first token, for sequences of up to
  // `tokens` tokens.
  std::function<int64_t(int64_t tokens)> largest_split;
  // Recomputation begins with the first inputs that arrive, rather than when all are there.
  bool chunked = true;
};

// Of the next sequence of a step: what `place` gave too many or too few to the sequences before,
// `over` (0 before the first), it gets less or more, so that together they have what is best.
inline Recomputed NextSplit(const Recompute& recompute, int64_t past, int64_t sequences,
                            int64_t* over) {
  const int64_t wanted = recompute.split(past, sequences);
  const Recomputed placed = recompute.place(std::clamp<int64_t>(wanted - *over, 0, past), past);
  *over += placed.first + placed.last - wanted;
  return placed;
}

// Tokens whose inputs travel, and whose rows are recomputed, together. On a GPU they are those of
// several sequences: a product of few rows leaves most of it idle.
inline constexpr int64_t kRecomputeTokens = 256, kGpuRecomputeTokens = 2048;
// So many times over on a GPU: on streams of their own.
inline constexpr size_t kRecomputeLanes = 2;
// Their products have a multiple of so many rows (pieces.h).
inline constexpr int64_t kGpuRecomputeUnit = 256;

// Bytes of the scratch beside the tiers: inputs, keys and values of what is recomputed together, on
// a GPU the keys' rotations, too, and the positions of all `tokens` that a step recomputes.
inline uint64_t RecomputeScratchBytes(const Layout& layout, int64_t tokens, bool on_gpu) {
  const auto hidden = static_cast<uint64_t>(layout.hidden);
  const auto width = static_cast<uint64_t>(layout.kv_heads * layout.head_dim);
  if (on_gpu) {
    if (tokens == 0) return 0;
    const int64_t rows = (std::min(tokens, kGpuRecomputeTokens) + kGpuRecomputeUnit - 1) /
                         kGpuRecomputeUnit * kGpuRecomputeUnit;
    // Positions of a step and of the next one.
    return 2 * static_cast<uint64_t>(tokens + kGpuRecomputeUnit) * sizeof(int32_t) +
           kRecomputeLanes * static_cast<uint64_t>(rows) *
               (hidden * SizeOf(layout.dtype) +
                (2 * width + static_cast<uint64_t>(layout.head_dim)) * sizeof(float));
  }
  return static_cast<uint64_t>(kRecomputeTokens) * (hidden + 2 * width) * sizeof(float);
}

}  // namespace litecache::kv::offload
