// Reuse forced by a measurement: which heads hit, and how much of a selection is already cached.
// For queries without similarity (random weights), and to replay another model's reuse. The real
// lookup and the real selection run first; the functions below replace their results.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "lab/namespaces.h"
#include "ops/common/host_device.h"

namespace litecache::lab::ops {

// The result forced on one head at one step.
struct ForcedHead {
  static constexpr int32_t kWhole = 1 << 16;
  int32_t hit = -1;  // 1: hit, 0: miss, -1: the real result
  // Rows of a refresh that have a slot, in 1/kWhole of the refresh's; below 0: the real selection.
  int32_t kept = -1;
  // A refresh's rows, in 1/kWhole of the most that a head selects.
  int32_t rows = kWhole;
};

// Number of rows of a refresh that may have `most`.
LC_HOST_DEVICE int32_t ForcedRowCount(const ForcedHead& forced, int32_t most) {
  const auto rows = static_cast<int32_t>((int64_t{forced.rows} * most + ForcedHead::kWhole / 2) /
                                         ForcedHead::kWhole);
  return rows < 1 ? 1 : rows < most ? rows : most;
}

// The index, of `steps` forced steps, for a sequence at `past` tokens in row `row` of the step's
// activations: sequences that decode together are at different steps.
LC_HOST_DEVICE int32_t ForcedStep(int32_t past, int32_t row, int32_t steps) {
  return static_cast<int32_t>((int64_t{past} + int64_t{row} * 37) % steps);
}

// Number of rows in a selection of `count` that are taken from `cached` candidates; the others are
// not cached.
LC_HOST_DEVICE int32_t KeptRows(int32_t kept, int32_t count, int32_t cached, int32_t candidates) {
  const auto wanted =
      static_cast<int32_t>((int64_t{kept} * count + ForcedHead::kWhole / 2) / ForcedHead::kWhole);
  const int32_t most = wanted < cached ? wanted : cached;
  const int32_t least = count - (candidates - cached);
  return most > least ? most : least;
}

// If `take` of `of` items in a row are taken, spread evenly: the number of those before item i.
LC_HOST_DEVICE int32_t TakenBefore(int32_t i, int32_t take, int32_t of) {
  return of == 0 ? 0 : static_cast<int32_t>(int64_t{i} * take / of);
}

// Positions are processed in words of 32: the bits of a word that are in [begin, end), ...
LC_HOST_DEVICE uint32_t CandidateBits(int32_t word, int32_t begin, int32_t end) {
  const int32_t first = begin - 32 * word, last = end - 32 * word;
  if (first >= 32 || last <= 0) return 0;
  const uint32_t above = first > 0 ? ~0u << first : ~0u;
  return last < 32 ? above & ~(~0u << last) : above;
}

// ... and `count` of `bits`, which has at least that many: the first ones from bit `turn` on.
LC_HOST_DEVICE uint32_t TakeBits(uint32_t bits, int32_t count, uint32_t turn) {
  const uint32_t back = (32 - turn) % 32;
  uint32_t left = bits >> turn | bits << back, taken = 0;
  for (; count > 0; --count) {
    const uint32_t lowest = left & (0u - left);
    taken |= lowest;
    left ^= lowest;
  }
  return taken << turn | taken >> back;
}

// The `turn` of TakeBits, different for every word and step.
LC_HOST_DEVICE uint32_t WordTurn(int32_t word, int32_t end) {
  uint32_t x = static_cast<uint32_t>(word) * 0x9e3779b1u + static_cast<uint32_t>(end) * 0x85ebca77u;
  x ^= x >> 15;
  return x * 0x2c1b3c6du >> 27;
}

// Replaces one head's selection of `count` positions in [begin, end), ascending, by another, also
// ascending, in which KeptRows are among `cached` and the others are not.
struct ForceOverlapWork {
  int32_t kept = 0;                 // >= 0
  const int32_t* cached = nullptr;  // positions with a slot, distinct, in any order
  int64_t cached_count = 0;
  int64_t begin = 0, end = 0;
  int32_t* selected = nullptr;
  int64_t count = 0;
};

void ForceOverlap(Stream& stream, std::span<const ForceOverlapWork> work);

}  // namespace litecache::lab::ops
