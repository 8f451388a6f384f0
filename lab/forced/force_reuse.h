// Reuse that a measurement forces: which heads hit, and how much of a selection is cached already.
// For queries that have no similarity of their own (random weights), and to play another model's
// back. The real lookup and the real selection have run; what follows replaces their results.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "ops/common/host_device.h"

namespace litecache::ops {

// Forced on one head at one step.
struct ForcedHead {
  static constexpr int32_t kWhole = 1 << 16;
  int32_t hit = -1;   // 1: hit, 0: miss, -1: as looked up
  int32_t kept = -1;  // rows of a refresh that have a slot, in 1/kWhole; below 0: as selected
};

// Which of `steps` forced steps a sequence at `past` tokens is at, in row `row` of the step's
// activations: those that decode together are not in step with each other.
LC_HOST_DEVICE int32_t ForcedStep(int32_t past, int32_t row, int32_t steps) {
  return static_cast<int32_t>((int64_t{past} + int64_t{row} * 37) % steps);
}

// Rows of a selection of `count` that are taken from `cached` candidates; the rest comes from the
// other ones.
LC_HOST_DEVICE int32_t KeptRows(int32_t kept, int32_t count, int32_t cached, int32_t candidates) {
  const auto wanted =
      static_cast<int32_t>((int64_t{kept} * count + ForcedHead::kWhole / 2) / ForcedHead::kWhole);
  const int32_t most = wanted < cached ? wanted : cached;
  const int32_t least = count - (candidates - cached);
  return most > least ? most : least;
}

// `take` of `of` items in a row, spread evenly: how many of them come before item i.
LC_HOST_DEVICE int32_t TakenBefore(int32_t i, int32_t take, int32_t of) {
  return of == 0 ? 0 : static_cast<int32_t>(int64_t{i} * take / of);
}

// Positions are taken by words of 32: which of a word's bits are among [begin, end), ...
LC_HOST_DEVICE uint32_t CandidateBits(int32_t word, int32_t begin, int32_t end) {
  const int32_t first = begin - 32 * word, last = end - 32 * word;
  if (first >= 32 || last <= 0) return 0;
  const uint32_t above = first > 0 ? ~0u << first : ~0u;
  return last < 32 ? above & ~(~0u << last) : above;
}

// ... and `count` of `bits`, which are as many at least: the first ones after bit `turn`.
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

// turn of TakeBits, another one for every word and step.
LC_HOST_DEVICE uint32_t WordTurn(int32_t word, int32_t end) {
  uint32_t x = static_cast<uint32_t>(word) * 0x9e3779b1u + static_cast<uint32_t>(end) * 0x85ebca77u;
  x ^= x >> 15;
  return x * 0x2c1b3c6du >> 27;
}

// One head's selection: `count` positions of [begin, end), ascending, become others, ascending, of
// which KeptRows are among `cached` and the rest are not.
struct ForceOverlapWork {
  int32_t kept = 0;                 // >= 0
  const int32_t* cached = nullptr;  // positions that have a slot, each once, in any order
  int64_t cached_count = 0;
  int64_t begin = 0, end = 0;
  int32_t* selected = nullptr;
  int64_t count = 0;
};

void ForceOverlap(Stream& stream, std::span<const ForceOverlapWork> work);

}  // namespace litecache::ops
