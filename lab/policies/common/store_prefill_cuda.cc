#include "lab/policies/common/store_prefill_cuda.h"

#include "device/sections.h"
#include "ops/attention/attention_cuda.h"

namespace litecache::lab {
namespace {

using ops::cuda::RowRange;
using ops::cuda::StepView;

// SMs used by copies between store and staging pages while a prompt's products run.
constexpr int32_t kLinkSms = 6;

}  // namespace

void CudaStorePrefill::Fetch(const StepBlock& block, int64_t layer) {
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    const StepView step = block.Prefilling(i);
    if (step.max_context == step.max_rows) continue;  // there are no earlier rows
    ops::cuda::CopyRows(link_.stream(), step, layout_.kv_heads, store_(layer), staging_(layer),
                        {.kind = RowRange::kPast}, kLinkSms);
  }
  link_.Mark(MarkOf(layer));
}

void CudaStorePrefill::Attend(Stream& stream, const StepBlock& block, int64_t layer,
                              const MatrixView& q, const MatrixView& k, const MatrixView& v,
                              const ops::Softmax& softmax, const MatrixView& out, void* scratch,
                              ArrangedRows* arranged) {
  if (block.prefilling() == 0) return;
  const ops::cuda::RowTable staging = staging_(layer);
  if (layer == 0) {
    link_.Fork(stream);
    Fetch(block, 0);
  }
  Mark(stream, Section::kTransfer);
  link_.Join(stream, MarkOf(layer));
  Mark(stream, Section::kManagement);
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    ops::cuda::AppendRows(stream, block.Prefilling(i), layout_.kv_heads, staging, k, v);
  }
  // The other buffer is free for the next layer: the previous layer attended it before this fork,
  // and its rows for the store were given to the link at that time.
  link_.Fork(stream);
  arranged_.assign(static_cast<size_t>(block.prefilling()), false);
  for (int64_t i = 0; arranged != nullptr && i < block.prefilling(); ++i) {
    arranged_[static_cast<size_t>(i)] = arranged->Arrange(stream, layer, i);
  }
  if (layer + 1 < layout_.layers) Fetch(block, layer + 1);
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    if (arranged_[static_cast<size_t>(i)]) continue;
    ops::cuda::CopyRows(link_.stream(), block.Prefilling(i), layout_.kv_heads, staging,
                        store_(layer), {.kind = RowRange::kNew}, kLinkSms);
  }
  // After all work that need not wait for an arrangement.
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    if (arranged_[static_cast<size_t>(i)]) arranged->Store(link_, layer, i);
  }
  const SectionScope section(stream, Section::kAttention);
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    ops::cuda::PagedAttention(stream, block.Prefilling(i), layout_.kv_heads, staging, q,
                              layout_.q_heads, softmax, out, scratch);
  }
}

void CudaStorePrefill::Store(Stream& stream, const StepBlock& block, int64_t layer,
                             const MatrixView& k, const MatrixView& v) {
  for (int64_t i = 0; i < block.prefilling(); ++i) {
    ops::cuda::AppendRows(stream, block.Prefilling(i), layout_.kv_heads, store_(layer), k, v);
  }
}

}  // namespace litecache::lab
