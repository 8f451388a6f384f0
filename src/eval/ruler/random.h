// Random numbers that are the same on every platform; std:: distributions are not.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace litecache::eval {

// Avalanches 64 bits (the finalizer of SplitMix64).
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A separate random stream for every (seed, stream) pair.
constexpr uint64_t DeriveSeed(uint64_t seed, uint64_t stream) {
  return MixBits(MixBits(seed) ^ (stream * 0xd1342543de82ef95ull + 1));
}

// FNV-1a, finalized: stable across platforms and releases, because splits and seeds depend on it.
constexpr uint64_t HashText(std::string_view text) { return MixBits(Fnv1a(text)); }

class Random {
 public:
  explicit Random(uint64_t seed) : state_(MixBits(seed)) {}

  uint64_t Bits() { return MixBits(state_ += 0x9e3779b97f4a7c15ull); }

  // Uniform in [0, bound), bound > 0.
  int64_t Below(int64_t bound) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(Bits()) * static_cast<Wide>(bound);
    return static_cast<int64_t>(product >> 64);
  }

  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

  // `count` distinct numbers from [0, bound) in random order; count <= bound.
  std::vector<int64_t> Sample(int64_t bound, int64_t count);

 private:
  uint64_t state_;
};

}  // namespace litecache::eval
