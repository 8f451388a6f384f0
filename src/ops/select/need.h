// Selections by need: as many rows as hold a worthwhile share of a head's attention.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/common/host_device.h"

namespace litecache::ops {

// Low bits of a score that are ignored by NeededScore(): a GPU then counts whole bins of its
// histogram of scores (top_k_chain.cuh).
inline constexpr int kIgnoredScoreBits = 18;

// The least score, a sum over a group's heads of softmaxes over `candidates` rows, for which a row
// is selected by need: that of an average candidate, rounded down by less than a thirty-second.
LC_HOST_DEVICE float NeededScore(int64_t group, int64_t candidates) {
  // In double precision, whose division no compiler option makes inexact.
  const auto average =
      static_cast<float>(static_cast<double>(group) / static_cast<double>(candidates));
  uint32_t bits;
  std::memcpy(&bits, &average, sizeof(bits));
  bits &= ~((uint32_t{1} << kIgnoredScoreBits) - 1);
  float needed;
  std::memcpy(&needed, &bits, sizeof(needed));
  return needed;
}

}  // namespace litecache::ops
