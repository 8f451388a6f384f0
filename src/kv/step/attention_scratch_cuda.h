// Device memory that attention takes on a GPU outside the tiers, for the memory plan.
#pragma once

#include <cstdint>

#include "kv/layout.h"

namespace litecache::kv {

// Bytes of scratch for attention of up to `sequences` decode sequences, under every policy.
uint64_t CudaAttentionScratchBytes(const Layout& layout, int64_t sequences);

}  // namespace litecache::kv
