// A decode step of policy infinigen on a GPU: the kernels of each layer and their streams.
#include <algorithm>

#include "base/error.h"
#include "device/sections.h"
#include "lab/policies/infinigen/infinigen_cache_cuda.h"
#include "lab/policies/infinigen/ops/select_top_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/listed_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::lab::infinigen {

using ops::cuda::PartialLayer;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;

// Number of SMs that fetch all rows of a layer: enough to saturate the link
// (lab/notes/gpu/transfer.md).
constexpr int32_t kLinkSms = 10;

// Chooses channels for the prompts that have ended, and encodes their tokens' partial keys in all
// layers, if no chunk announced as the last has done it.
void CudaInfiniGenCache::ChooseAndEncode(Stream& stream) {
  const Layout& layout = shape_.layout;
  for (const StepSequence& part : decoding_) {
    Sequence& sequence = Get(part.id);
    if (sequence.has_chosen) continue;
    ops::cuda::ChooseChannels(stream, sequence.sums[sequence.current].as<double>(),
                              shape_.sparse_layers() * layout.kv_heads, layout.head_dim, width_,
                              shape_.partial.rank, sequence.chosen.as<int32_t>());
  }
  const StepView step = Decoding();
  for (int64_t layer = shape_.dense_layers; layer < layout.layers; ++layer) {
    ops::cuda::CopyRows(stream, step, layout.kv_heads, Store(layer), Staging(layer),
                        {.kind = RowRange::kRing}, kLinkSms);
    ops::cuda::EncodePartialKeys(stream, step, Partial(layer), Staging(layer),
                                 {.kind = RowRange::kRing});
  }
}

void CudaInfiniGenCache::BeginDecoding(Stream& stream) {
  ops::cuda::ShareGpu(stream);
  if (choosing_) ChooseAndEncode(stream);
  for (int64_t layer = 0; layer < std::min(kBuffers, shape_.dense_layers); ++layer) {
    FetchAll(stream, layer);
  }
}

void CudaInfiniGenCache::FetchAll(Stream& stream, int64_t layer) {
  link_.Fork(stream);
  ops::cuda::CopyRows(link_.stream(), Decoding(), shape_.layout.kv_heads, Store(layer),
                      Staging(layer), {.kind = RowRange::kPast}, kLinkSms);
  link_.Mark(kArrived + static_cast<int>(ParityOf(layer)));
  fetched_[static_cast<size_t>(layer)] = 1;
}

void CudaInfiniGenCache::Speculate(Stream& stream, int64_t layer, const MatrixView& q,
                                   float scale) {
  const int64_t kv_heads = shape_.layout.kv_heads;
  const StepView step = Decoding();
  const PartialLayer partial = Partial(layer);
  const Work& work = works_[ParityOf(layer)];
  decisions_.Fork(stream);
  Stream& decisions = decisions_.stream();
  ops::cuda::ProjectQueries(decisions, step, partial, q, work.speculation);
  ops::cuda::MarginScore(decisions, step, partial, scale, alpha_, shape_.cap, work.speculation,
                         keys_, work_context_, CountersOf(layer));
  ops::cuda::SelectTop(decisions, step, kv_heads, work.speculation.ranges, keys_, work_context_,
                       context_, work.selected, work.selected_count, max_rows_);
  ForceRows(decisions, layer, work.speculation.ranges, work.selected, work.selected_count,
            max_rows_);
  link_.Fork(decisions);
  {
    // If the CPU gathers the rows, the host gives `stream` no other work meanwhile.
    const SectionScope section(stream, Section::kTransfer);
    Move(link_.stream(), layer, Staging(layer), work.selected, slots_, work.selected_count);
  }
  link_.Mark(kArrived + static_cast<int>(ParityOf(layer)));
  fetched_[static_cast<size_t>(layer)] = 1;
}

void CudaInfiniGenCache::Prefetch(Stream& stream, int64_t layer, const Step& step,
                                  const MatrixView& q, float scale) {
  LC_CHECK(layer >= 1 && layer < shape_.layout.layers && q.rows >= step.decode_rows);
  if (decoding_.empty() || !WantsPrediction(layer)) return;
  Start(stream);
  Speculate(stream, layer, q, scale);
}

void CudaInfiniGenCache::AttendDecoding(Stream& stream, int64_t layer, const MatrixView& q,
                                        const MatrixView& k, const MatrixView& v,
                                        const ops::Softmax& softmax, const MatrixView& out) {
  const Layout& layout = shape_.layout;
  const bool dense = layer < shape_.dense_layers;
  const StepView step = Decoding();
  if (!fetched_[static_cast<size_t>(layer)]) {
    dense ? FetchAll(stream, layer) : Speculate(stream, layer, q, softmax.scale);
  }
  Mark(stream, Section::kTransfer);
  link_.Join(stream, kArrived + static_cast<int>(ParityOf(layer)));
  Mark(stream, Section::kManagement);
  const RowTable rows = dense ? Staging(layer) : StagedChoice(layer);
  ops::cuda::AppendRows(stream, step, layout.kv_heads, rows, k, v);
  if (dense) {
    ops::cuda::AppendRows(stream, step, layout.kv_heads, Store(layer), k, v);
  } else {
    // For the staged row, with which the speculation of the next but one layer waits.
    decisions_.Fork(stream);
    Stream& decisions = decisions_.stream();
    ops::cuda::CopyRows(decisions, step, layout.kv_heads, rows, Store(layer),
                        {.kind = RowRange::kNew});
    ops::cuda::EncodePartialKeys(decisions, step, Partial(layer), rows, {.kind = RowRange::kNew});
  }
  const SectionScope section(stream, Section::kAttention);
  if (dense) {
    ops::cuda::PagedAttention(stream, step, layout.kv_heads, rows, q, layout.q_heads, softmax, out,
                              scratch_.data());
  } else {
    const ops::cuda::RowLists lists{.leading = works_[ParityOf(layer)].speculation.attended};
    ops::cuda::ListedAttention(stream, step, layout.kv_heads, Staging(layer), lists, q,
                               layout.q_heads, softmax, out, nullptr, scratch_.data());
  }
  if (layer + kBuffers < shape_.dense_layers) FetchAll(stream, layer + kBuffers);
}

}  // namespace litecache::lab::infinigen
