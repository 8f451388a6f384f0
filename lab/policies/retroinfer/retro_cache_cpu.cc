#include "lab/policies/retroinfer/retro_cache_cpu.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/sections.h"
#include "lab/policies/retroinfer/retro_cache.h"

namespace litecache::lab {

RetroCache::RetroCache(Device& device, const RetroShape& shape, const TierBytes& budget)
    : WaveCache(device, device, shape, budget),
      index_threads_(device.Info().parallelism),
      buffer_(shape_, device.Info().parallelism) {}

RetroCache::~RetroCache() {
  buffer_.Settle();
  sequences_.clear();  // their builds must end before threads and pages are destroyed
}

// ---- the index ----

std::unique_ptr<WaveBuild> RetroCache::NewBuild(SequenceId, WaveSequence*,
                                                std::vector<WavePart> parts) {
  return std::make_unique<IndexBuild>(shape_, index_threads_, std::move(parts));
}

void RetroCache::RunBuild(SequenceId id, WaveSequence* sequence, bool from_ring) {
  IndexBuild& build = BuildOf(*sequence);
  build.Store();
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    build.Start(layer, Lists(id, *sequence, layer, from_ring));
  }
}

std::vector<WaveList> RetroCache::Lists(SequenceId id, const WaveSequence& sequence, int64_t layer,
                                        bool from_ring) const {
  std::vector<WaveList> lists;
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    const int64_t list = shape_.List(layer, head);
    WaveList where;
    where.store.assign(store_.Lists(id)[list], store_.Lists(id)[list] + store_.Blocks(id));
    where.index.assign(index_.Lists(id)[list], index_.Lists(id)[list] + index_.Blocks(id));
    if (from_ring) {
      const auto ring = sequence.steady.Pages(list);
      where.ring.assign(ring.begin(), ring.end());
    }
    where.begins = const_cast<int32_t*>(sequence.begins[static_cast<size_t>(list)].data());
    lists.push_back(std::move(where));
  }
  return lists;
}

// ---- steps ----

void RetroCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                        const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                        const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  RefuseCap(softmax);
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, softmax, out);
  if (!prefilling_.empty()) Prefill(stream, layer, q, k, v, softmax, out);
}

// ---- decode ----

void RetroCache::Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                        const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out) {
  for (const View& view : decoding_) {
    // Clusters that are not in use need not be complete, unless their rows' slots are needed.
    WaveSequence& sequence = *view.sequence;
    if (sequence.build != nullptr && sequence.pending.empty()) BuildOf(sequence).Wait(layer);
  }
  const SectionScope section(stream, Section::kManagement);
  Fill(stream, layer);
  Append(layer, k, v);
  Select(stream, layer, q, softmax.scale);
  Mark(stream, Section::kManagement);
  const std::span<WaveAccess> accesses = buffer_.Begin(selects_.size());
  for (size_t i = 0; i < accesses.size(); ++i) {
    const View& view = decoding_[select_views_[i]];
    const ops::ClusterSelectWork& select = selects_[i];
    accesses[i].sequence = view.sequence;
    accesses[i].head = static_cast<int64_t>(i) % shape_.layout.kv_heads;
    accesses[i].list = shape_.List(layer, accesses[i].head);
    accesses[i].clusters = select.clusters;
    accesses[i].store = StoreRows(view.part.id, accesses[i].list);
    accesses[i].ranked = {select.ids, static_cast<size_t>(select.ranked_count)};
  }
  if (!accesses.empty()) {
    buffer_.Lookup(stream);
    buffer_.StartTransfer();
    // Index operations that need no rows run in parallel with the transfer of rows.
    estimates_.clear();
    size_t room = 0;
    const auto size = static_cast<size_t>(ops::StateSize(shape_.group, shape_.layout.head_dim));
    for (size_t i = 0; i < accesses.size(); ++i) {
      const ops::ClusterSelectWork& select = selects_[i];
      const int64_t count = select.ranked_count - accesses[i].retrieved + select.unranked_count;
      estimates_.push_back({.clusters = select.clusters,
                            .logits = select.logits,
                            .logit_stride = select.count,
                            .ids = select.ids + accesses[i].retrieved,
                            .count = count,
                            .states = nullptr});
      room += static_cast<size_t>(ops::EstimateStates(count)) * size;
    }
    states_.resize(room);
    float* next = states_.data();
    for (ops::ClusterEstimateWork& estimate : estimates_) {
      estimate.states = next;
      next += static_cast<size_t>(ops::EstimateStates(estimate.count)) * size;
    }
    Mark(stream, Section::kRetrieval);
    ops::ClusterEstimate(stream, shape_.group, estimates_);
    CountAccesses(layer, accesses);
    Mark(stream, Section::kTransfer);
    buffer_.WaitTransfer();
    Mark(stream, Section::kManagement);
    buffer_.StartUpdate();
  }
  Mark(stream, Section::kAttention);
  AttendZones(stream, layer, accesses, q, softmax, out);
  if (!accesses.empty()) buffer_.StartAdmission();
}

void RetroCache::Fill(Stream& stream, int64_t layer) {
  const auto l = static_cast<size_t>(layer);
  const int64_t heads = shape_.layout.kv_heads;
  moves_.clear();
  size_t room = 0;
  bool all = true;
  for (const View& view : decoding_) {
    if (view.sequence->filled[l]) continue;
    all = false;
    const int64_t rest = store_.Length(view.part.id) - view.sequence->indexed_end;
    room += 2 * static_cast<size_t>(shape_.sink + std::max<int64_t>(rest, 0));
  }
  if (all) return;
  indices_.resize(room);
  int32_t* next = indices_.data();
  uint64_t moved = 0;
  for (const View& view : decoding_) {
    WaveSequence& sequence = *view.sequence;
    if (sequence.filled[l]) continue;
    // Rows that are not in the store are in their slots.
    const int64_t stored = std::min(store_.Length(view.part.id), view.part.past);
    int32_t* rows = next;
    int64_t count = 0;
    for (int64_t t = 0; t < std::min(shape_.sink, stored); ++t) {
      rows[count++] = static_cast<int32_t>(t);
    }
    for (int64_t t = sequence.indexed_end; t < stored; ++t) {
      rows[count++] = static_cast<int32_t>(t);
    }
    if (count == 0) continue;
    int32_t* slots = rows + count;
    for (int64_t i = 0; i < count; ++i) {
      slots[i] = static_cast<int32_t>(shape_.SteadySlot(rows[i]));
    }
    next = slots + count;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t list = shape_.List(layer, head);
      moves_.push_back({.source = StoreRows(view.part.id, list),
                        .target = SteadyRows(sequence, list),
                        .positions = rows,
                        .slots = slots,
                        .count = count});
    }
    moved += static_cast<uint64_t>(count * heads);
  }
  ops::MoveRows(stream, moves_);
  for (const View& view : decoding_) view.sequence->filled[l] = 1;
  stats_.fill.rows += moved;
  stats_.fill.bytes += moved * shape_.format.row_bytes();
}

void RetroCache::Append(int64_t layer, const MatrixView& k, const MatrixView& v) {
  const int64_t d = shape_.layout.head_dim;
  row_.resize(static_cast<size_t>(2 * d));
  for (const View& view : decoding_) {
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      std::copy_n(k.Row<float>(view.part.first_row) + head * d, d, row_.data());
      std::copy_n(v.Row<float>(view.part.first_row) + head * d, d, row_.data() + d);
      ops::ConvertRow({ops::RowEncoding::kF32, d}, reinterpret_cast<const std::byte*>(row_.data()),
                      shape_.format,
                      SteadyRows(*view.sequence, shape_.List(layer, head))
                          .Row(shape_.SteadySlot(view.part.past)));
    }
  }
}

void RetroCache::Select(Stream& stream, int64_t layer, const MatrixView& q, float scale) {
  const int64_t heads = shape_.layout.kv_heads, d = shape_.layout.head_dim;
  selects_.clear();
  select_views_.clear();
  size_t clusters = 0, ids = 0;
  for (const View& view : decoding_) {
    if (view.sequence->clusters == 0) continue;
    clusters += static_cast<size_t>(heads * view.sequence->clusters);
    ids += static_cast<size_t>(heads * (view.sequence->nprobe + view.sequence->estimated));
  }
  logits_.resize(clusters * static_cast<size_t>(shape_.group));
  scores_.resize(clusters);
  ids_.resize(ids);
  float* logits = logits_.data();
  float* scores = scores_.data();
  int32_t* next = ids_.data();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const WaveSequence& sequence = *decoding_[i].sequence;
    if (sequence.clusters == 0) continue;
    for (int64_t head = 0; head < heads; ++head) {
      selects_.push_back({.q = q.Row<float>(decoding_[i].part.first_row) + head * shape_.group * d,
                          .scale = scale,
                          .clusters = Clusters(decoding_[i].part.id, shape_.List(layer, head)),
                          .count = sequence.clusters,
                          .ranked = sequence.nprobe,
                          .unranked = sequence.estimated,
                          .logits = logits,
                          .scores = scores,
                          .ids = next});
      select_views_.push_back(i);
      logits += shape_.group * sequence.clusters;
      scores += sequence.clusters;
      next += sequence.nprobe + sequence.estimated;
    }
  }
  Mark(stream, Section::kRetrieval);
  if (!selects_.empty()) ops::ClusterSelect(stream, shape_.group, selects_);
  if (forced_ != nullptr) {
    Mark(stream, Section::kOverride);
    ForceClusters(layer);
  }
  stats_.bytes_scored += clusters * (shape_.format.row_bytes() / 2);
}

void RetroCache::ForceClusters(int64_t layer) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < selects_.size(); ++i) {
    const ops::ClusterSelectWork& select = selects_[i];
    const StepSequence& part = decoding_[select_views_[i]].part;
    // The heads of a sequence are adjacent.
    const int64_t head = static_cast<int64_t>(i) % shape_.layout.kv_heads;
    order.resize(static_cast<size_t>(select.count));
    forced_->Clusters(layer, head, part.past, part.first_row, select.count, select.count,
                      order.data());
    int32_t* next = select.ids;
    int32_t* const end = next + select.ranked_count + select.unranked_count;
    for (const int32_t id : order) {
      if (next == end) break;
      if (select.scores[id] >= 0) *next++ = id;  // not empty
    }
    LC_CHECK(next == end);
    std::sort(select.ids + select.ranked_count, end);
  }
}

void RetroCache::CountAccesses(int64_t layer, std::span<const WaveAccess> accesses) {
  for (size_t i = 0; i < accesses.size(); ++i) {
    const WaveAccess& access = accesses[i];
    HeadCounters& head = heads_[static_cast<size_t>(access.list)];
    head.lookups += static_cast<uint64_t>(access.retrieved);
    head.hits += access.hits.size();
    head.rows_selected += access.slots.size();
    head.rows_moved += access.miss_rows.size();
    stats_.miss.rows += access.miss_rows.size();
    stats_.miss.bytes += access.miss_rows.size() * shape_.format.row_bytes();
    stats_.bytes_scored +=
        static_cast<uint64_t>(estimates_[i].count) * (shape_.format.row_bytes() / 2);
    if (choices_ == nullptr) continue;
    const SequenceId id = decoding_[select_views_[i]].part.id;
    const ops::ClusterEstimateWork& estimate = estimates_[i];
    (*choices_)[{id, layer, access.head}] = {
        .retrieved = {access.ranked.begin(), access.ranked.begin() + access.retrieved},
        .estimated = {estimate.ids, estimate.ids + estimate.count},
        .hits = access.hits};
  }
}

void RetroCache::AttendZones(Stream& stream, int64_t layer, std::span<const WaveAccess> accesses,
                             const MatrixView& q, const ops::Softmax& softmax,
                             const MatrixView& out) {
  const int64_t d = shape_.layout.head_dim;
  attended_.Clear();
  size_t access = 0;
  for (const View& view : decoding_) {
    const WaveSequence& sequence = *view.sequence;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const int64_t row = view.part.first_row, offset = head * shape_.group * d;
      ops::RowAttentionHead& attends = attended_.Begin(
          head * shape_.group, q.Row<float>(row) + offset, out.Row<float>(row) + offset);
      const ops::PagedRows steady = SteadyRows(sequence, shape_.List(layer, head));
      attended_.Add(steady, 0, std::min(shape_.sink, view.n()));
      if (sequence.clusters > 0) {
        const WaveAccess& a = accesses[access];
        const ops::ClusterEstimateWork& estimate = estimates_[access++];
        attended_.Add({.rows = a.Rows(shape_),
                       .indices = a.slots.data(),
                       .begin = 0,
                       .count = static_cast<int64_t>(a.slots.size())});
        attends.states = estimate.states;
        attends.state_count = ops::EstimateStates(estimate.count);
      }
      // The ring: from the oldest row to its end, then from its start.
      const int64_t count = view.n() - sequence.indexed_end;
      if (count <= 0) continue;
      const int64_t first = shape_.SteadySlot(sequence.indexed_end);
      const int64_t run = std::min(count, shape_.sink + shape_.ring() - first);
      attended_.Add(steady, first, run);
      attended_.Add(steady, shape_.sink, count - run);
    }
  }
  const uint64_t rows = attended_.Attend(stream, shape_.format, shape_.group, softmax);
  stats_.bytes_read += rows * shape_.format.row_bytes();
  stats_.bytes_written += attended_.heads() * shape_.format.row_bytes();
}

// ---- prompts ----

void RetroCache::Spill(Stream& stream, int64_t layer) {
  moves_.clear();
  size_t room = 0;
  for (const View& view : prefilling_) {
    room += 2 * static_cast<size_t>(view.part.past - store_.Length(view.part.id));
  }
  if (room == 0) return;
  indices_.resize(room);
  int32_t* next = indices_.data();
  uint64_t moved = 0;
  for (const View& view : prefilling_) {
    const int64_t stored = store_.Length(view.part.id);
    const int64_t count = view.part.past - stored;
    if (count == 0) continue;
    int32_t* slots = next + count;
    for (int64_t i = 0; i < count; ++i) {
      next[i] = static_cast<int32_t>(stored + i);
      slots[i] = static_cast<int32_t>(shape_.SteadySlot(stored + i));
    }
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const int64_t list = shape_.List(layer, head);
      moves_.push_back({.source = SteadyRows(*view.sequence, list),
                        .target = StoreRows(view.part.id, list),
                        .positions = slots,
                        .slots = next,
                        .count = count});
      moved += static_cast<uint64_t>(count);
    }
    next = slots + count;
  }
  ops::MoveRows(stream, moves_);
  stats_.spill.rows += moved;
  stats_.spill.bytes += moved * shape_.format.row_bytes();
}

void RetroCache::Prefill(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                         const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out) {
  const auto heads = static_cast<size_t>(shape_.layout.kv_heads);
  Spill(stream, layer);
  lists_.resize(prefilling_.size() * heads);
  views_.clear();
  uint64_t seen = 0, rows = 0;
  for (const View& view : prefilling_) {
    std::byte* const** lists = lists_.data() + views_.size() * heads;
    for (size_t head = 0; head < heads; ++head) {
      lists[head] = store_.Lists(view.part.id)[shape_.List(layer, static_cast<int64_t>(head))];
    }
    views_.push_back({.first_row = view.part.first_row,
                      .rows = view.part.rows,
                      .past = view.part.past,
                      .pages = lists,
                      .pages_per_head = store_.Blocks(view.part.id)});
    seen += static_cast<uint64_t>(view.n());
    rows += static_cast<uint64_t>(view.part.rows);
  }
  const ops::KvGeometry geometry = MakeGeometry(shape_.layout);
  ops::AppendKv(stream, geometry, views_, k, v);
  ops::Attention(stream, geometry, views_, q, shape_.layout.q_heads, softmax, out);
  stats_.bytes_read += seen * heads * shape_.format.row_bytes();
  stats_.bytes_written += rows * heads * shape_.format.row_bytes();
  stats_.prefill.rows += rows * heads;
  stats_.prefill.bytes += rows * heads * shape_.format.row_bytes();
  // Nothing of this layer is read before its first decode step.
  for (const View& view : prefilling_) {
    if (view.sequence->build != nullptr && !view.sequence->build->storing()) {
      BuildOf(*view.sequence)
          .Start(layer, Lists(view.part.id, *view.sequence, layer, /*from_ring=*/false));
    }
  }
}

std::unique_ptr<Cache> CreateCpuRetroCache(Device& device, const RetroShape& shape,
                                           const TierBytes& budget,
                                           std::shared_ptr<const ForcedSelection> forced) {
  auto cache = std::make_unique<RetroCache>(device, shape, budget);
  cache->Force(std::move(forced));
  return cache;
}

}  // namespace litecache::lab
