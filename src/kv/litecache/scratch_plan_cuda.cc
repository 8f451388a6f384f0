#include "kv/litecache/scratch_plan_cuda.h"

#include <algorithm>

#include "kv/heads/prediction_sources.h"
#include "kv/step/attention_scratch_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "kv/transfer/transfer_engine_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/reuse/update_slots_cuda.h"
#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

uint64_t CudaAttentionScratchBytes(const Layout& layout, int64_t sequences) {
  return ops::cuda::AttentionScratchBytes(sequences, layout.q_heads, layout.head_dim);
}

// Source addresses and scales of moved rows, one list for all heads, and the buffer they arrive in.
// The ring of cpu-push is in device memory only through a mapping that few machines have.
uint64_t CudaTransferBytes(std::string_view transfer, int64_t rows) {
  if (transfer == "gpu-pull") return 0;
  const uint64_t ring = transfer == "copy" ? TransferOptions().ring_bytes : 0;
  return ring + static_cast<uint64_t>(rows) * (sizeof(uint64_t) + sizeof(ops::RowScales));
}

uint64_t CudaLiteScratchBytes(const Shape& shape, const HeadPlan& heads, bool verifies,
                              std::string_view transfer, int64_t sequences, int64_t tokens) {
  const int64_t ahead = LayersAhead(heads.sources);
  const int64_t context = ContextBucket(tokens);
  const ops::cuda::LiteCacheShape lite{.kv_heads = static_cast<int32_t>(shape.layout.kv_heads),
                                       .group = static_cast<int32_t>(shape.group)};
  const uint64_t refresh = std::max(ops::cuda::SelectScratchBytes(lite, sequences, context),
                                    ops::cuda::UpdateSlotsScratchBytes(lite, sequences, context));
  const uint64_t attention = CudaAttentionScratchBytes(shape.layout, sequences);
  // Lists of selected rows, moved rows and their target slots.
  const int64_t pairs = sequences * shape.layout.kv_heads;
  const int64_t rows = std::min(shape.Rows(context), context);
  const auto lists = static_cast<uint64_t>(pairs * (3 * rows + 4)) * sizeof(int32_t);
  uint64_t bytes = static_cast<uint64_t>(ahead + 1) * lists + std::max(refresh, attention);
  // Selections of resident heads, a list of each layer.
  bytes += static_cast<uint64_t>(heads.selecting_layers() * pairs * (rows + 1)) * sizeof(int32_t);
  // Of the streams of decisions and corrections.
  if (ahead > 0) bytes += refresh + (verifies ? std::max(refresh, attention) : 0);
  return bytes + CudaTransferBytes(transfer, pairs * rows);
}

}  // namespace litecache::kv
