// A prompt's chunk under policy litecache on a GPU: earlier rows come from the store into staging
// pages, new ones go there, beside the layers before and after.
#include <algorithm>

#include "kv/litecache/lite_cache_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {

using ops::cuda::LiteLayer;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;

namespace {

// SMs that copies between store and staging pages take beside a prompt's products, where rows are
// of another format in each.
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
  if (step.max_context > step.max_rows) CopyStaged(turn, set, Direction::kToStaging);
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

void CudaLiteCache::CopyStaged(const Turn& turn, int set, Direction direction) {
  const Shape& shape = tiers_.shape;
  const bool to_store = direction == Direction::kToStore;
  if (shape.store_format.encoding != shape.format.encoding) {
    const RowTable& store = layers_[static_cast<size_t>(turn.layer)].store;
    const RowTable staging = Staging(turn.layer, set);
    ops::cuda::CopyRows(link_.stream(), block_.Prefilling(turn.sequence), shape.layout.kv_heads,
                        to_store ? staging : store, to_store ? store : staging,
                        {.kind = to_store ? RowRange::kNew : RowRange::kPast}, kStagingSms);
    return;
  }
  const int64_t index = block_.decoding() + turn.sequence;
  const ops::cuda::StepSequence& sequence = block_.at(index);
  const int64_t begin = to_store ? sequence.past : 0;
  const int64_t end = to_store ? sequence.past + sequence.rows : sequence.past;
  std::byte* const* const* store = tiers_.store.Lists(running_[static_cast<size_t>(index)]);
  const std::vector<std::byte*>& staging = growth_.staging();
  const int64_t lists = shape.staging_sets * shape.max_offloaded_in_layer;
  const int64_t blocks = static_cast<int64_t>(staging.size()) / lists;
  const auto row_bytes = static_cast<int64_t>(shape.format.row_bytes());
  const int64_t far_rows = shape.store_page_tokens, near_rows = shape.pages.page_tokens;
  int64_t staged = set * shape.max_offloaded_in_layer;  // the next head's list
  for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
    const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(turn.layer, head))];
    if (list < 0) continue;
    const int64_t first_page = staged++ * blocks;
    for (int64_t t = begin; t < end;) {
      // To the end of the store's page, or of the staging pages that are one piece of memory: a
      // copy of more than one allocation is an error.
      const int64_t most = std::min(end - t, far_rows - t % far_rows);
      auto page = static_cast<size_t>(first_page + t / near_rows);
      std::byte* near = staging[page] + t % near_rows * row_bytes;
      std::byte* far = store[list][t / far_rows] + t % far_rows * row_bytes;
      int64_t rows = near_rows - t % near_rows;
      while (rows < most && growth_.StagingGoesOn(page)) {
        rows += near_rows;
        ++page;
      }
      rows = std::min(rows, most);
      copies_.Add(to_store ? far : near, to_store ? near : far,
                  static_cast<size_t>(rows * row_bytes));
      t += rows;
    }
  }
  copies_.Send(link_.stream());
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
      CopyStaged(turn, set, Direction::kToStore);
      attend(staging);
    }
  }
  if (HasResident(index)) {
    ops::cuda::AppendRows(stream, step, kv_heads, layer.resident, k, v);
    attend(layer.resident);
  }
}

}  // namespace litecache::kv
