// A prompt's chunk under policy litecache on a GPU: earlier rows come from the store into staging
// pages, new ones go there, beside the layers before and after.
#include "kv/cuda/litecache/lite_cache.h"
#include "ops/cuda/step/rows.h"

namespace litecache::kv {

using ops::cuda::LiteLayer;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;

namespace {

// SMs that copies between store and staging pages take beside a prompt's products.
constexpr int32_t kStagingSms = 6;

}  // namespace

std::optional<CudaLiteCache::Turn> CudaLiteCache::After(const Turn& turn) const {
  if (turn.sequence + 1 < block_.prefilling()) return Turn{turn.layer, turn.sequence + 1};
  for (int64_t layer = turn.layer + 1; layer < tiers_.shape.layout.layers; ++layer) {
    if (HasOffloaded(layer)) return Turn{layer, 0};
  }
  return std::nullopt;
}

void CudaLiteCache::SpillRing(Stream& stream, const Turn& turn) {
  const Shape& shape = tiers_.shape;
  const LiteLayer& layer = layers_[static_cast<size_t>(turn.layer)];
  const StepView ring = block_.Ring(turn.sequence);
  if (ring.max_rows == 0) return;
  ops::cuda::CopyRows(stream, ring, shape.layout.kv_heads, layer.slots, layer.store,
                      {.kind = RowRange::kLeaving, .recent = static_cast<int32_t>(shape.recent)});
}

void CudaLiteCache::Fetch(const Turn& turn, int set) {
  SpillRing(link_.stream(), turn);
  const StepView step = block_.Prefilling(turn.sequence);
  if (step.max_context > step.max_rows) {
    ops::cuda::CopyRows(link_.stream(), step, tiers_.shape.layout.kv_heads,
                        layers_[static_cast<size_t>(turn.layer)].store, Staging(turn.layer, set),
                        {.kind = RowRange::kPast}, kStagingSms);
  }
  link_.Mark(kFetched + set);
}

RowTable CudaLiteCache::Staging(int64_t layer, int set) const {
  const Shape& shape = tiers_.shape;
  return {.table = ops::cuda::kStaging,
          .lists = static_cast<int32_t>(shape.staging_sets * shape.max_offloaded_in_layer),
          .page_rows = static_cast<int32_t>(shape.pages.page_tokens),
          .format = shape.format,
          .list_of_head = staging_lists_.at(static_cast<size_t>(set))[static_cast<size_t>(layer)]};
}

void CudaLiteCache::AttendPrompt(Stream& stream, int64_t index, int64_t sequence,
                                 const MatrixView& q, const MatrixView& k, const MatrixView& v,
                                 float scale, const MatrixView* out) {
  const Shape& shape = tiers_.shape;
  const int64_t kv_heads = shape.layout.kv_heads;
  const LiteLayer& layer = layers_[static_cast<size_t>(index)];
  const StepView step = block_.Prefilling(sequence);
  const bool offloaded = HasOffloaded(index);
  const Turn turn{index, sequence};
  const int set = static_cast<int>(turns_ % 2);
  if (offloaded && out == nullptr) SpillRing(stream, turn);
  if (offloaded && out != nullptr && turns_ == 0) {
    link_.Fork(stream);
    Fetch(turn, set);
  }
  if (const StepView ring = block_.Ring(sequence); ring.max_rows > 0) {
    scorer_->Encode(stream, index, ring, lite_shape_, layer, nullptr);
  }
  scorer_->Encode(stream, index, step, lite_shape_, layer, &k);
  const auto attend = [&](const RowTable& table) {
    if (out == nullptr) return;
    ops::cuda::PagedAttention(stream, step, kv_heads, table, q, shape.layout.q_heads, scale, *out,
                              scratch_.data());
  };
  if (offloaded) {
    ops::cuda::KeepLastQueries(stream, step, lite_shape_, layer, q);
    const RowTable staging = Staging(index, set);
    if (out == nullptr) {
      // As they are on the device, then as the store has them: what a chunk that attends does.
      ops::cuda::AppendRows(stream, step, kv_heads, staging, k, v);
      ops::cuda::CopyRows(stream, step, kv_heads, staging, layer.store, {.kind = RowRange::kNew});
    } else {
      link_.Join(stream, kFetched + set);
      ops::cuda::AppendRows(stream, step, kv_heads, staging, k, v);
      // The other set is free for the next turn: the last one attended it before this fork, and
      // what it left for the store was given to the link then.
      link_.Fork(stream);
      ++turns_;
      if (const auto next = After(turn)) Fetch(*next, static_cast<int>(turns_ % 2));
      ops::cuda::CopyRows(link_.stream(), step, kv_heads, staging, layer.store,
                          {.kind = RowRange::kNew}, kStagingSms);
      attend(staging);
    }
  }
  if (HasResident(index)) {
    ops::cuda::AppendRows(stream, step, kv_heads, layer.resident, k, v);
    attend(layer.resident);
  }
}

}  // namespace litecache::kv
