// Device memory that steps of policy litecache take on a GPU beside the tiers, for the memory plan.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv/litecache/shape.h"

namespace litecache::kv {

// What selections, slot updates and attention of up to `sequences` decode
// sequences of up to `tokens` tokens work in, and the lists and the ring of transfer engine
// `transfer`. prefetch: a second set of it, for the branch.
uint64_t CudaLiteScratchBytes(const Shape& shape, bool prefetch, std::string_view transfer,
                              int64_t sequences, int64_t tokens);

}  // namespace litecache::kv
