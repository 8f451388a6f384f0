// Prompts of policy infinigen on a GPU: the sums that determine the channels, and the partial keys
// in those channels.
#include "device/sections.h"
#include "lab/policies/infinigen/infinigen_cache_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::lab::infinigen {

using ops::cuda::RowRange;
using ops::cuda::StepView;

void CudaInfiniGenCache::AddSums(Stream& stream, int64_t layer, const MatrixView& q,
                                 const MatrixView& k) {
  if (layer < shape_.dense_layers) return;
  const SectionScope section(stream, Section::kRetrieval);
  const int64_t at = shape_.PartialList(layer, 0) * width_;
  for (const StepSequence& part : prefilling_) {
    const Sequence& sequence = Get(part.id);
    ops::cuda::AddChannelSums(
        stream, Partial(layer), q.Rows(part.first_row, part.rows),
        k.Rows(part.first_row, part.rows), sequence.sums[sequence.current].as<double>() + at,
        sequence.sums[1 - sequence.current].as<double>() + at, scratch_.data());
  }
}

// For prompts that end: their rows of this layer are all in the staging pages.
void CudaInfiniGenCache::EncodePrompts(Stream& stream, int64_t layer) {
  if (layer < shape_.dense_layers) return;
  const SectionScope section(stream, Section::kRetrieval);
  const Layout& layout = shape_.layout;
  const int64_t list = shape_.PartialList(layer, 0);
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const Sequence& sequence = Get(prefilling_[i].id);
    if (!sequence.encodes) continue;
    ops::cuda::ChooseChannels(stream,
                              sequence.sums[1 - sequence.current].as<double>() + list * width_,
                              layout.kv_heads, layout.head_dim, width_, shape_.partial.rank,
                              sequence.chosen.as<int32_t>() + list * shape_.partial.rank);
    const StepView step = block_.Prefilling(static_cast<int64_t>(i));
    for (const RowRange::Kind kind : {RowRange::kRing, RowRange::kNew}) {
      ops::cuda::EncodePartialKeys(stream, step, Partial(layer), Staging(layer), {.kind = kind});
    }
  }
}

void CudaInfiniGenCache::PromptAttended(Stream& stream, int64_t layer, const MatrixView& q,
                                        const MatrixView& k) {
  AddSums(stream, layer, q, k);
  EncodePrompts(stream, layer);
}

void CudaInfiniGenCache::PromptStored(Stream& stream, int64_t layer, const MatrixView& q,
                                      const MatrixView& k) {
  // Nothing is staged: the first token after the prompt encodes its keys.
  for (const StepSequence& part : prefilling_) Get(part.id).encodes = false;
  AddSums(stream, layer, q, k);
}

}  // namespace litecache::lab::infinigen
