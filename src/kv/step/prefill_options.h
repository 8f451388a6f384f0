// Options of sparse prefill, for the caches whose prompts attend all rows.
#pragma once

#include <string>

#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

ops::SparsePrefill SparsePrefillOf(const KvOptions& options);

// Bytes of scratch on a CPU for choosing the rows of prompts of up to `tokens` tokens.
uint64_t PromptScratchBytes(const ops::SparsePrefill& sparse, const Layout& layout, int64_t tokens);

// For CachePlan::Identity(): rows of prompts depend on it. Empty if all rows are attended.
std::string IdentityOf(const ops::SparsePrefill& sparse);

}  // namespace litecache::kv
