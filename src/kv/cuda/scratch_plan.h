// Device memory that steps of policy litecache take on a GPU beside the tiers, for the memory plan.
#pragma once

#include <cstdint>

#include "kv/litecache/shape.h"

namespace litecache::kv {

// What selections, slot updates and attention of up to `sequences` decode sequences of up to
// `tokens` tokens work in. prefetch: a second set of it, for the branch.
uint64_t CudaLiteScratchBytes(const Shape& shape, bool prefetch, int64_t sequences, int64_t tokens);

}  // namespace litecache::kv
