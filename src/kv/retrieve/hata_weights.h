// The projections of `hata` for profiles without trained ones.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/layout.h"

namespace litecache::kv {

// Standard normal numbers of a fixed seed, f32 [layers][kv_heads][head_dim][bits].
std::vector<float> RandomHataWeights(const Layout& layout, int64_t bits);

}  // namespace litecache::kv
