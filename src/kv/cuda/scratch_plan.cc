#include "kv/cuda/scratch_plan.h"

#include <algorithm>

#include "kv/cuda/step_block.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/litecache.h"

namespace litecache::kv {

uint64_t CudaLiteScratchBytes(const Shape& shape, bool prefetch, int64_t sequences,
                              int64_t tokens) {
  const int64_t context = ContextBucket(tokens);
  const ops::cuda::LiteShape lite{.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
                                  .group = static_cast<int32_t>(shape.group)};
  const uint64_t refresh = std::max(ops::cuda::SelectScratchBytes(lite, sequences, context),
                                    ops::cuda::UpdateSlotsScratchBytes(lite, sequences, context));
  const uint64_t attention =
      ops::cuda::AttentionScratchBytes(sequences, shape.layout.q_heads, shape.layout.head_dim);
  // Rows a head wants, rows that move and the slots they go to.
  const int64_t pairs = sequences * shape.layout.kv_heads;
  const int64_t rows = std::min(shape.Rows(context), context);
  const auto lists = static_cast<uint64_t>(pairs * (3 * rows + 4)) * sizeof(int32_t);
  const uint64_t sets = prefetch ? 2 : 1;
  return sets * lists + (sets - 1) * refresh + std::max(refresh, attention);
}

}  // namespace litecache::kv
