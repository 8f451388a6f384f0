// Options of sparse prefill, for the caches whose prompts attend all rows.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kv/layout.h"
#include "litecache/kv_options.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

ops::SparsePrefill SparsePrefillOf(const KvOptions& options);

// An optional interface of a CachePlan (dynamic_cast): its caches' prompts may be sparse.
class SparsePromptPlan {
 public:
  explicit SparsePromptPlan(ops::SparsePrefill sparse) : sparse_(std::move(sparse)) {}
  virtual ~SparsePromptPlan() = default;
  const ops::SparsePrefill& sparse_prefill() const { return sparse_; }
  // Applies to caches created afterwards. Null: no override.
  void SetOverride(std::shared_ptr<ops::ChoiceOverride> results) {
    sparse_.results = std::move(results);
  }

 private:
  ops::SparsePrefill sparse_;
};

// Bytes of scratch on a CPU for choosing the rows of prompts of up to `tokens` tokens.
uint64_t PromptScratchBytes(const ops::SparsePrefill& sparse, const Layout& layout, int64_t tokens);

// For CachePlan::Identity(): rows of prompts depend on it. Empty if all rows are attended.
std::string IdentityOf(const ops::SparsePrefill& sparse);

}  // namespace litecache::kv
