#include "engine/random.h"

#include <random>

namespace litecache::engine {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace litecache::engine
