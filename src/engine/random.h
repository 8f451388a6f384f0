// Random seeds.
#pragma once

#include <cstdint>

namespace litecache::engine {

// A seed from the system's entropy source.
uint64_t RandomSeed();

}  // namespace litecache::engine
