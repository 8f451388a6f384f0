// A small model with a window in the first and the last of three layers.
#pragma once

#include "kv/cache.h"

namespace litecache::kv {

inline Layout WindowedLayout() {
  return {.layers = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .dtype = DType::kF32,
          .window = 20,
          .windowed = {true, false, true}};
}

}  // namespace litecache::kv
