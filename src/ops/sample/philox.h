// Random numbers that depend on a counter and a key alone.
#pragma once

#include <cstdint>

#include "ops/common/host_device.h"

namespace litecache::ops {

struct PhiloxWords {
  uint32_t word[4];
};
struct PhiloxKey {
  uint32_t word[2];
};

// The constants of a round of Philox4x32: two multipliers, and what is added to the key.
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

// Philox4x32-10 (Salmon et al., SC 2011): a keyed bijection of 128-bit counters that passes
// BigCrush. It has no state, so a number is the same in any batch and on any device.
LC_HOST_DEVICE PhiloxWords Philox(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxMultiplier0} * counter.word[0];
    const uint64_t b = uint64_t{kPhiloxMultiplier1} * counter.word[2];
    counter = {
        {static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key.word[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key.word[1], static_cast<uint32_t>(a)}};
    key.word[0] += kPhiloxWeyl0;
    key.word[1] += kPhiloxWeyl1;
  }
  return counter;
}

}  // namespace litecache::ops
