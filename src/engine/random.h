// Random numbers that depend on their purpose, not on when they are drawn.
#pragma once

#include <array>
#include <cstdint>

namespace litecache::engine {

// Philox4x32-10 (Salmon et al., SC 2011): a keyed bijection of 128-bit counters that passes
// BigCrush. It has no state, so a sample's draw is the same in any batch.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1) with 53 bits, a function of its arguments alone.
double UniformAt(uint64_t seed, uint32_t sample, uint64_t token);

// A seed from the system's entropy source.
uint64_t RandomSeed();

}  // namespace litecache::engine
