// Device memory that attention takes on a GPU outside the tiers, for the memory plan.
#pragma once

#include <cstdint>

#include "kv/layout.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

// Bytes of scratch for attention of up to `sequences` decode sequences, under every policy.
uint64_t CudaAttentionScratchBytes(const Layout& layout, int64_t sequences);

// Bytes for choosing the rows of prompts, of chunks of usual size in up to `tokens` tokens.
uint64_t CudaPromptScratchBytes(const ops::SparsePrefill& sparse, const Layout& layout,
                                int64_t tokens);

}  // namespace litecache::kv
