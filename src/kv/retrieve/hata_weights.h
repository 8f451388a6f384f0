// What `hata` hashes with where a profile has no trained projections.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/layout.h"

namespace litecache::kv {

// Standard normal numbers, f32 [layers][kv_heads][head_dim][bits]; always the same.
std::vector<float> RandomHataWeights(const Layout& layout, int64_t bits);

}  // namespace litecache::kv
