// A decode step of policy pqcache on a GPU: the kernels of each layer and their streams.
#include "device/cuda/check.h"
#include "device/sections.h"
#include "lab/policies/pqcache/pq_cache_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::lab::pqcache {

using ops::cuda::PqKeys;
using ops::cuda::PqLayer;
using ops::cuda::PqSequence;
using ops::cuda::SelectRange;
using ops::cuda::StepView;

void CudaPqCache::BeginDecoding(Stream& stream) {
  new_rows_.Send(stream);
  parameters_->Send(
      stream, static_cast<size_t>(work_sequences_) * (sizeof(PqSequence) + sizeof(SelectRange)));
  LC_CUDA(cudaMemsetAsync(uses_->device(), 0, UsesBytes(), AsCuda(stream).handle()));
  ops::cuda::PqApply(stream, Updates());
  link_.Fork(stream);
  ops::cuda::PqAdmit(link_.stream(), Decoding(), Layer(0), Updates());
}

void CudaPqCache::AttendDecoding(Stream& stream, int64_t index, const MatrixView& q,
                                 const MatrixView& k, const MatrixView& v,
                                 const ops::Softmax& softmax, const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const PqLayer layer = Layer(index);
  const StepView step = Decoding();
  if (filling_) {
    Mark(stream, Section::kManagement);
    for (const StepSequence& part : decoding_) {
      if (sequences_.Get(part.id).index != nullptr && !TablesOf(part.id).filled) {
        FillCodes(stream, index, part);
      }
    }
    ops::cuda::PqFillWindow(stream, step, layer);
    ops::cuda::PqEncode(stream, step, layer, PqKeys::kStored);
  }
  Mark(stream, Section::kRetrieval);
  ops::cuda::PqSelect(stream, step, layer, q, softmax.scale, scratch_.data());
  ForceRows(stream, index, layer.ranges, layer.selected, layer.selected_count, layer.max_rows);
  Mark(stream, Section::kManagement);
  ops::cuda::PqLookup(stream, step, layer);
  link_.Fork(stream);
  // If the CPU gathers the rows, the host gives `stream` no other work meanwhile.
  Mark(stream, Section::kTransfer);
  Move(link_.stream(), index, layer.rows, layer.moved_positions, layer.moved_slots,
       layer.moved_count);
  link_.Mark(kArrived);
  Mark(stream, Section::kManagement);
  if (index + 1 < layout.layers) {
    ops::cuda::PqAdmit(link_.stream(), step, Layer(index + 1), Updates());
  }
  ops::cuda::AppendRows(stream, new_rows_.Decoding(context_), layout.kv_heads, layer.rows, k, v);
  // Nothing waits for the remaining operations on the new row.
  link_.Fork(stream);
  ops::cuda::PqStoreNew(link_.stream(), step, layer);
  ops::cuda::PqEncode(link_.stream(), step, layer, PqKeys::kNew);
  Mark(stream, Section::kTransfer);
  link_.Join(stream, kArrived);
  const SectionScope section(stream, Section::kAttention);
  ops::cuda::ListedAttention(stream, step, layout.kv_heads, layer.rows,
                             {layer.leading, layer.listed, layer.listed_count, layer.max_rows}, q,
                             layout.q_heads, softmax, out, nullptr, scratch_.data());
}

void CudaPqCache::EndLayers(Stream& stream) {
  if (!decoding_.empty()) uses_->Receive(stream, UsesBytes());
}

}  // namespace litecache::lab::pqcache
