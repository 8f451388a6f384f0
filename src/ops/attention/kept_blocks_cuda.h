// Kept blocks in device memory: their bits, and the same as lists.
#pragma once

#include <cstdint>

#include "ops/attention/kept_blocks.h"

namespace litecache::ops::cuda {

struct DeviceKeptBlocks : KeptBlocks {
  // [q_heads][query_blocks][list_size]: the kept blocks in rising order, and how many they are.
  uint16_t* lists = nullptr;
  int32_t* counts = nullptr;  // [q_heads][query_blocks]
  int32_t list_size = 0;
};

}  // namespace litecache::ops::cuda
