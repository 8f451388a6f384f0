// What policy kvpr decides, and how much of it is done at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kv/cache.h"

namespace litecache::kv::offload {

struct Recompute {
  // Of a sequence of `past` tokens in a decode step of `sequences`: rows of tokens [0, result) are
  // recomputed, 0 to past.
  std::function<int64_t(int64_t past, int64_t sequences)> split;
  // The most that split() answers for sequences of up to `tokens` tokens.
  std::function<int64_t(int64_t tokens)> largest_split;
  // Recomputation begins with the first inputs that arrive, rather than when all are there.
  bool chunked = true;
};

// Tokens whose inputs travel, and whose rows are recomputed, together. On a GPU they are those of
// several sequences: a product of few rows leaves most of it idle.
inline constexpr int64_t kRecomputeTokens = 256, kGpuRecomputeTokens = 2048;
// So many times over on a GPU: on streams of their own.
inline constexpr size_t kRecomputeLanes = 2;

// Bytes of the scratch beside the tiers: inputs, keys and values of what is recomputed together, on
// a GPU the keys' rotations, too, and the positions of all `tokens` that a step recomputes.
inline uint64_t RecomputeScratchBytes(const Layout& layout, int64_t tokens, bool on_gpu) {
  const auto hidden = static_cast<uint64_t>(layout.hidden);
  const auto width = static_cast<uint64_t>(layout.kv_heads * layout.head_dim);
  if (on_gpu) {
    return static_cast<uint64_t>(tokens) * sizeof(int32_t) +
           static_cast<uint64_t>(
               std::min(tokens, static_cast<int64_t>(kRecomputeLanes) * kGpuRecomputeTokens)) *
               (hidden * SizeOf(layout.dtype) +
                (2 * width + static_cast<uint64_t>(layout.head_dim)) * sizeof(float));
  }
  return static_cast<uint64_t>(kRecomputeTokens) * (hidden + 2 * width) * sizeof(float);
}

}  // namespace litecache::kv::offload
