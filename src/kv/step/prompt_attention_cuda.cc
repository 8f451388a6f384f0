#include "kv/step/prompt_attention_cuda.h"

#include <algorithm>

#include "kv/step/attention_scratch_cuda.h"
#include "ops/sparse_prefill/choice_override.h"
#include "ops/sparse_prefill/sparse_prefill_cuda.h"

namespace litecache::kv {
namespace {

constexpr int64_t kPlannedChunk = 8192;  // the largest that is chosen by itself

size_t BytesOf(const Layout& layout, int64_t rows, int64_t context) {
  return ops::cuda::SparsePrefillBytes(layout.kv_heads, layout.q_heads, layout.head_dim, rows,
                                       context);
}

}  // namespace

uint64_t CudaPromptScratchBytes(const ops::SparsePrefill& sparse, const Layout& layout,
                                int64_t tokens) {
  if (!sparse.on() || tokens < sparse.context) return 0;
  return BytesOf(layout, std::min(tokens, kPlannedChunk), tokens);
}

void CudaPromptAttention::BeginStep(const Step& step) {
  ends_.clear();
  size_t bytes = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.decode) continue;
    ends_.push_back(sequence.ends_prompt);
    if (!sparse_.Serves(sequence.past, sequence.rows)) continue;
    bytes = std::max(bytes, BytesOf(layout_, sequence.rows, sequence.past + sequence.rows));
  }
  if (bytes <= memory_.size()) return;
  memory_ = Buffer();  // free first: the old and the new buffer need not fit together
  memory_ = device_.Allocate(bytes);
}

void CudaPromptAttention::Attend(Stream& stream, int64_t layer, int64_t chunk,
                                 const ops::cuda::StepView& view, const ops::cuda::RowTable& table,
                                 std::span<const int32_t> heads, const MatrixView& q,
                                 const ops::Softmax& softmax, const MatrixView& out,
                                 void* scratch) {
  ops::cuda::DeviceKeptBlocks kept;
  const int64_t past = view.max_context - view.max_rows;
  const bool sparse =
      sparse_.Serves(past, view.max_rows) && ops::cuda::SparsePrefillServes(table.format);
  if (sparse) {
    const bool whole_end = ends_[static_cast<size_t>(chunk)];
    kept = ops::cuda::ChooseBlocks(stream, view, layout_.kv_heads, table, heads, q, layout_.q_heads,
                                   softmax, sparse_.mass, whole_end, memory_.data());
    if (sparse_.results != nullptr) {
      sparse_.results->OnGpu(device_, stream,
                             {layer, past, view.max_rows, layout_.q_heads, whole_end}, kept);
    }
  }
  ops::cuda::PagedAttention(stream, view, layout_.kv_heads, table, q, layout_.q_heads, softmax, out,
                            scratch, sparse ? &kept : nullptr);
}

}  // namespace litecache::kv
