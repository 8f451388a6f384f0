#include "kv/litecache/prefill_cuda.h"

#include <algorithm>

#include "device/sections.h"
#include "ops/attention/attention_cuda.h"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {

using ops::cuda::LiteCacheLayer;
using ops::cuda::RowRange;
using ops::cuda::RowTable;
using ops::cuda::StepView;

namespace {

// SMs for the kernels that copy between store and staging pages, if the two hold rows in different
// formats. Copies of a long chunk run beside its products, which take longer. A short chunk waits
// for them: with 6 SMs int8 rows come at 20 GB/s, of the 51 to 55 that the link has.
int32_t StagingSms(int64_t chunk_rows) { return chunk_rows <= 2048 ? 32 : 6; }

}  // namespace

void CudaPrefillPath::BeginStep(const Step& step) {
  turns_ = 0;
  prompts_.BeginStep(step);
  chunks_.clear();
  const auto count = static_cast<int64_t>(step.sequences.size());
  for (int64_t i = step.decode_rows; i < count; ++i) {
    const StepSequence& part = step.sequences[static_cast<size_t>(i)];
    // The last query of a draft may be a rejected one.
    chunks_.push_back({part.id, !part.drafted || part.past == 0});
    // Rows that are in the ring but not in the store are spilled as those of a sequence whose
    // recent window is empty.
    ops::cuda::StepSequence& ring = block_.ring(i - step.decode_rows);
    ring = block_.at(i);
    ring.rows = 1;
    ring.past = static_cast<int32_t>(part.past + tiers_.shape.recent) - 1;
  }
  const std::vector<std::byte*>& pages = growth_.staging();
  if (pages.empty()) return;
  const int64_t lists = tiers_.shape.staging_sets * tiers_.shape.max_offloaded_in_layer;
  const int64_t blocks = static_cast<int64_t>(pages.size()) / lists;
  staging_.Update(device_, lists, blocks, 0, [&](int64_t list, int64_t b) {
    return pages[static_cast<size_t>(list * blocks + b)];
  });
  for (int64_t i = step.decode_rows; i < count; ++i) {
    block_.at(i).pages[ops::cuda::kStaging] = staging_.device();
  }
}

std::optional<CudaPrefillPath::Turn> CudaPrefillPath::After(const Turn& turn) const {
  if (turn.chunk + 1 < block_.prefilling()) return Turn{turn.layer, turn.chunk + 1};
  for (int64_t layer = turn.layer + 1; layer < tiers_.shape.layout.layers; ++layer) {
    if (tiers_.shape.offloads(layer)) return Turn{layer, 0};
  }
  return std::nullopt;
}

void CudaPrefillPath::SpillRing(Stream& stream, const Turn& turn) {
  const Shape& shape = tiers_.shape;
  const LiteCacheLayer& layer = layers_.at(turn.layer);
  const StepView ring = block_.Ring(turn.chunk);
  if (ring.max_rows == 0) return;
  ops::cuda::CopyRows(stream, ring, shape.layout.kv_heads, layer.slots, layer.store,
                      {.kind = RowRange::kLeaving, .recent = static_cast<int32_t>(shape.recent)});
}

void CudaPrefillPath::Fetch(const Turn& turn, int set) {
  SpillRing(pulls_.link().stream(), turn);
  const StepView step = block_.Prefilling(turn.chunk);
  if (step.max_context > step.max_rows) CopyStaged(turn, set, Direction::kToStaging);
  pulls_.link().Mark(FetchedMark(set));
}

void CudaPrefillPath::CopyStaged(const Turn& turn, int set, Direction direction) {
  const Shape& shape = tiers_.shape;
  if (shape.store_format.encoding == shape.format.encoding) {
    CopyBytes(turn, set, direction);
    return;
  }
  const bool to_store = direction == Direction::kToStore;
  const RowTable& store = layers_.at(turn.layer).store;
  const RowTable staging = layers_.Staging(turn.layer, set);
  const StepView step = block_.Prefilling(turn.chunk);
  ops::cuda::CopyRows(pulls_.link().stream(), step, shape.layout.kv_heads,
                      to_store ? staging : store, to_store ? store : staging,
                      {.kind = to_store ? RowRange::kNew : RowRange::kPast},
                      StagingSms(step.max_rows));
}

void CudaPrefillPath::CopyBytes(const Turn& turn, int set, Direction direction) {
  const Shape& shape = tiers_.shape;
  const bool to_store = direction == Direction::kToStore;
  const ops::cuda::StepSequence& sequence = block_.at(block_.decoding() + turn.chunk);
  const int64_t begin = to_store ? sequence.past : 0;
  const int64_t end = to_store ? sequence.past + sequence.rows : sequence.past;
  std::byte* const* const* store = tiers_.store.Lists(chunks_[static_cast<size_t>(turn.chunk)].id);
  const std::vector<std::byte*>& staging = growth_.staging();
  const int64_t lists = shape.staging_sets * shape.max_offloaded_in_layer;
  const int64_t blocks = static_cast<int64_t>(staging.size()) / lists;
  const auto row_bytes = static_cast<int64_t>(shape.format.row_bytes());
  const int64_t far_rows = shape.store_page_tokens, near_rows = shape.pages.page_tokens;
  int64_t staged = set * shape.max_offloaded_in_layer;  // list of the next offloaded head
  for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
    const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(turn.layer, head))];
    if (list < 0) continue;
    const int64_t first_page = staged++ * blocks;
    for (int64_t t = begin; t < end;) {
      // Up to the end of the store's page, or of adjacent staging pages: a copy must not span
      // allocations.
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
  copies_.Send(pulls_.link().stream());
}

void CudaPrefillPath::Encode(Stream& stream, const Turn& turn, const MatrixView& k) {
  const LiteCacheLayer& layer = layers_.at(turn.layer);
  if (const StepView ring = block_.Ring(turn.chunk); ring.max_rows > 0) {
    retriever_.Encode(stream, turn.layer, ring, layers_.shape(), layer, nullptr);
  }
  retriever_.Encode(stream, turn.layer, block_.Prefilling(turn.chunk), layers_.shape(), layer, &k);
}

void CudaPrefillPath::AttendRows(Stream& stream, const Turn& turn, const RowTable& table,
                                 const MatrixView& q, const ops::Softmax& softmax,
                                 const MatrixView& out) {
  const Shape& shape = tiers_.shape;
  const bool staged = table.table == ops::cuda::kStaging;
  heads_.clear();
  for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
    if (shape.offloads(turn.layer, head) == staged) heads_.push_back(static_cast<int32_t>(head));
  }
  prompts_.Attend(stream, turn.layer, turn.chunk, block_.Prefilling(turn.chunk), table, heads_, q,
                  softmax, out, layers_.scratch());
}

void CudaPrefillPath::AttendStaged(Stream& stream, const Turn& turn, const MatrixView& q,
                                   const MatrixView& k, const MatrixView& v,
                                   const ops::Softmax& softmax, const MatrixView& out) {
  const int own_set = set();
  const RowTable staging = layers_.Staging(turn.layer, own_set);
  pulls_.link().Join(stream, FetchedMark(own_set));
  ops::cuda::AppendRows(stream, block_.Prefilling(turn.chunk), tiers_.shape.layout.kv_heads,
                        staging, k, v);
  // The other set is free for the next turn: the attention that read it was issued before this
  // fork, and the copy of its new rows to the store was issued on the link then.
  pulls_.link().Fork(stream);
  ++turns_;
  if (const auto next = After(turn)) Fetch(*next, set());
  CopyStaged(turn, own_set, Direction::kToStore);
  AttendRows(stream, turn, staging, q, softmax, out);
}

void CudaPrefillPath::StoreStaged(Stream& stream, const Turn& turn, const MatrixView& k,
                                  const MatrixView& v) {
  // As for a chunk that attends: append in the device's format, then copy in the store's.
  const int64_t kv_heads = tiers_.shape.layout.kv_heads;
  const StepView step = block_.Prefilling(turn.chunk);
  const RowTable staging = layers_.Staging(turn.layer, set());
  ops::cuda::AppendRows(stream, step, kv_heads, staging, k, v);
  ops::cuda::CopyRows(stream, step, kv_heads, staging, layers_.at(turn.layer).store,
                      {.kind = RowRange::kNew});
}

bool CudaPrefillPath::Together() const {
  return tiers_.shape.offloaded == 0 && block_.prefilling() > 0 &&
         prompts_.IsContextIndependent(block_.AllPrefilling(), tiers_.shape.format);
}

bool CudaPrefillPath::AddTo(RecordingKey* key) const {
  if (block_.prefilling() == 0) return true;
  if (!Together()) return false;
  key->Add(block_.prefilling()).Add(int64_t{block_.AllPrefilling().max_rows});
  key->Add(int64_t{block_.AllRings().max_rows});
  return true;
}

void CudaPrefillPath::AttendTogether(Stream& stream, int64_t layer, const MatrixView& q,
                                     const MatrixView& k, const MatrixView& v,
                                     const ops::Softmax& softmax, const MatrixView& out) {
  const ops::cuda::LiteCacheShape& shape = layers_.shape();
  const LiteCacheLayer& heads = layers_.at(layer);
  const StepView step = block_.AllPrefilling();
  if (const StepView rings = block_.AllRings(); rings.max_rows > 0) {
    retriever_.Encode(stream, layer, rings, shape, heads, nullptr);
  }
  retriever_.Encode(stream, layer, step, shape, heads, &k);
  ops::cuda::AppendRows(stream, step, shape.kv_heads, heads.resident, k, v);
  const SectionScope section(stream, Section::kAttention);
  ops::cuda::PagedAttention(stream, step, shape.kv_heads, heads.resident, q,
                            tiers_.shape.layout.q_heads, softmax, out, layers_.scratch());
}

void CudaPrefillPath::AttendChunk(Stream& stream, const Turn& turn, const MatrixView& q,
                                  const MatrixView& k, const MatrixView& v,
                                  const ops::Softmax& softmax, const MatrixView* out) {
  const bool offloaded = tiers_.shape.offloads(turn.layer);
  if (offloaded && out == nullptr) SpillRing(stream, turn);
  if (offloaded && out != nullptr && turns_ == 0) {
    pulls_.link().Fork(stream);
    Fetch(turn, set());
  }
  Encode(stream, turn, k);
  const StepView step = block_.Prefilling(turn.chunk);
  if (offloaded) {
    if (chunks_[static_cast<size_t>(turn.chunk)].labels) {
      ops::cuda::KeepLastQueries(stream, step, layers_.shape(), layers_.at(turn.layer), q);
    }
    if (out != nullptr) {
      AttendStaged(stream, turn, q, k, v, softmax, *out);
    } else {
      StoreStaged(stream, turn, k, v);
    }
  }
  if (layers_.HasResident(turn.layer)) {
    const RowTable& resident = layers_.at(turn.layer).resident;
    ops::cuda::AppendRows(stream, step, tiers_.shape.layout.kv_heads, resident, k, v);
    if (out != nullptr) AttendRows(stream, turn, resident, q, softmax, *out);
  }
}

void CudaPrefillPath::Attend(Stream& stream, int64_t layer, const MatrixView& q,
                             const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                             const MatrixView* out) {
  if (out != nullptr && Together()) return AttendTogether(stream, layer, q, k, v, softmax, *out);
  for (int64_t i = 0; i < block_.prefilling(); ++i) {
    AttendChunk(stream, {layer, i}, q, k, v, softmax, out);
  }
}

}  // namespace litecache::kv
