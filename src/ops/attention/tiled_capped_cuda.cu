// Attention of a prompt chunk with a cap of scores, or over wide heads (tiled_kernel.cuh).
#include "ops/attention/tiled_kernel.cuh"

namespace litecache::ops::cuda::tiled {

template void Attend<true>(Stream& stream, const StepView& step, int64_t kv_heads,
                           const RowTable& table, Rows rows, int32_t window,
                           const AttentionOperands& operands);

}  // namespace litecache::ops::cuda::tiled
