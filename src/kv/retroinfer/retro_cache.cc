#include "kv/retroinfer/retro_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/pool_stats.h"

namespace litecache::kv {
namespace {

// A table without lists has no pages; any page size serves, and few blocks are counted.
constexpr TableShape kNoLists{0, int64_t{1} << 30, 0};

std::vector<float> AsFloats(const ops::RowFormat& format, const std::byte* row) {
  std::vector<float> floats(static_cast<size_t>(2 * format.head_dim));
  ops::ConvertRow(format, row, {ops::RowEncoding::kF32, format.head_dim},
                  reinterpret_cast<std::byte*>(floats.data()));
  return floats;
}

}  // namespace

RetroCache::RetroCache(Device& device, const RetroShape& shape, const TierBytes& budget)
    : shape_(shape),
      device_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_(device, shape.pages.page_bytes, budget.host, "KV cache, host store"),
      tokens_(kNoLists, device_),
      store_(shape_.StoreTable(), host_),
      index_(shape_.IndexTable(), device_),
      index_threads_(device.Info().parallelism),
      buffer_(shape_, device.Info().parallelism),
      heads_(static_cast<size_t>(shape.lists)) {}

RetroCache::~RetroCache() {
  buffer_.Settle();
  sequences_.clear();  // their builds end before the pages go
}

SequenceId RetroCache::Create() {
  const SequenceId id = tokens_.Create();
  LC_CHECK(store_.Create() == id && index_.Create() == id);
  auto sequence = std::make_unique<WaveSequence>(shape_, device_);
  sequence->indexed_end = shape_.sink;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

SequenceId RetroCache::Fork(SequenceId parent) {
  const int64_t length = tokens_.Length(parent);
  buffer_.Settle();
  WaveSequence& source = Get(parent);
  DropBuild(&source);
  // Rows of the store change their order once: before they are shared.
  if (source.prompt) {
    std::vector<WavePart> parts =
        PromptParts(source, source.clustered_end(), source.all_clusters(), length);
    if (!parts.empty()) {
      const std::vector<SequenceTable::Growth> rows = {{parent, 0, parts.front().begin}};
      const std::vector<SequenceTable::Growth> clusters = {
          {parent, shape_.ClusterRoom(length) - index_.Length(parent)}};
      host_.Reserve(store_.PagesNeeded(rows));
      device_.Reserve(index_.PagesNeeded(clusters));
      store_.Grow(rows);
      index_.Grow(clusters);
      StartBuild(parent, &source, std::move(parts), /*from_ring=*/false);
    }
  }
  if (source.build != nullptr) source.build->WaitAll();
  const SequenceId id = tokens_.Fork(parent);
  LC_CHECK(store_.Fork(parent) == id && index_.Fork(parent) == id);
  auto sequence = std::make_unique<WaveSequence>(shape_, device_, source);
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void RetroCache::Release(SequenceId id) {
  tokens_.Length(id);  // throws for one that does not exist
  buffer_.Settle();
  sequences_.erase(id);  // its build ends before the pages go
  tokens_.Release(id);
  store_.Release(id);
  index_.Release(id);
}

// ---- the index ----

std::vector<WavePart> RetroCache::PromptParts(const WaveSequence& sequence, int64_t clustered_end,
                                              int64_t clusters, int64_t n) const {
  std::vector<WavePart> parts;
  if (clusters == 0 && n >= shape_.least_indexed()) {
    parts.push_back({shape_.sink, n - shape_.recent, 0, shape_.Prompt(n)});
    return parts;
  }
  for (int64_t end = clustered_end + shape_.o.update_tokens; end <= n - shape_.recent;
       end += shape_.o.update_tokens) {
    parts.push_back({end - shape_.o.update_tokens, end, clusters, shape_.update});
    clusters += shape_.update.clusters;
  }
  return parts;
}

RetroCache::Needs RetroCache::Plan(const StepSequence& part) const {
  const WaveSequence& sequence = *sequences_.at(part.id);
  const int64_t n = part.past + part.rows;
  Needs needs;
  if (!part.decode) {
    if (!part.ends_prompt) return needs;
    needs.parts = PromptParts(sequence, sequence.clustered_end(), sequence.all_clusters(), n);
    if (!needs.parts.empty()) needs.cluster_room = shape_.ClusterRoom(n);
    return needs;
  }
  needs.cluster_room = shape_.ClusterRoom(n);
  needs.steady = shape_.SteadyPages(n);
  needs.cache = shape_.CachePages(n);
  needs.buffer = shape_.BufferPages(n);
  needs.adopt =
      !sequence.pending.empty() && part.past - shape_.recent >= sequence.pending.back().end;
  if (!sequence.pending.empty() && !needs.adopt) return needs;
  const int64_t end = sequence.clustered_end();
  if (sequence.prompt) {
    needs.parts = PromptParts(sequence, end, sequence.all_clusters(), part.past);
    return needs;
  }
  // Rows are clustered once they are there and used when they have left the recent window: threads
  // have as many steps for it. The steady zone has all of them by then.
  const bool filled = std::all_of(sequence.filled.begin(), sequence.filled.end(),
                                  [](uint8_t layer) { return layer != 0; });
  if (filled && part.past >= end + shape_.o.update_tokens) {
    needs.parts.push_back(
        {end, end + shape_.o.update_tokens, sequence.all_clusters(), shape_.update});
  }
  return needs;
}

void RetroCache::DropBuild(WaveSequence* sequence) {
  if (sequence->build != nullptr && !sequence->build->storing()) sequence->build.reset();
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

void RetroCache::PrepareBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts) {
  if (sequence->build != nullptr) sequence->build->WaitAll();
  const auto clusters =
      static_cast<size_t>(parts.back().first_cluster + parts.back().growth.clusters);
  for (auto& begins : sequence->begins) begins.resize(clusters, 0);
  sequence->build = std::make_unique<IndexBuild>(shape_, index_threads_, std::move(parts));
}

void RetroCache::StartBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts,
                            bool from_ring) {
  const int64_t rows = parts.back().end - store_.Length(id);
  const int64_t clusters =
      parts.back().first_cluster + parts.back().growth.clusters - index_.Length(id);
  // What an earlier chunk or fork has pending stays: it is not adopted before the next decode step.
  sequence->pending.insert(sequence->pending.end(), parts.begin(), parts.end());
  PrepareBuild(id, sequence, std::move(parts));
  sequence->build->Store();
  for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
    sequence->build->Start(layer, Lists(id, *sequence, layer, from_ring));
  }
  if (rows > 0) {
    store_.Commit(id, rows);
    const auto moved = static_cast<uint64_t>(rows * shape_.lists);
    stats_.spill.rows += moved;
    stats_.spill.bytes += moved * shape_.format.row_bytes();
  }
  index_.Commit(id, clusters);
}

void RetroCache::Adopt(WaveSequence* sequence) {
  for (const WavePart& part : sequence->pending) {
    sequence->indexed_end = part.end;
    sequence->clusters = part.first_cluster + part.growth.clusters;
    sequence->nprobe += part.growth.nprobe;
    sequence->estimated += part.growth.estimated;
  }
  sequence->pending.clear();
  for (BlockCache& cache : sequence->caches) {
    cache.Resize(sequence->clusters, shape_.CacheBlocks(sequence->nprobe));
  }
}

// ---- steps ----

void RetroCache::Reserve(const Step& step) {
  token_growth_.clear();
  store_growth_.clear();
  index_growth_.clear();
  shared_.clear();
  int64_t device = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSequence& part = step.sequences[i];
    const Needs& needs = needs_[i];
    const WaveSequence& sequence = Get(part.id);
    const int64_t rows = part.past + part.rows - store_.Length(part.id);
    token_growth_.push_back({part.id, part.rows});
    store_growth_.push_back(
        {part.id, rows, needs.parts.empty() ? store_.Length(part.id) : needs.parts.front().begin});
    if (needs.cluster_room > 0) {
      index_growth_.push_back({part.id, needs.cluster_room - index_.Length(part.id)});
    }
    if (!part.decode) continue;
    device += sequence.steady.Missing(needs.steady) + sequence.cache.Missing(needs.cache) +
              sequence.buffer.Missing(needs.buffer);
    sequence.steady.AddShared(&shared_);
  }
  host_.Reserve(store_.PagesNeeded(store_growth_));
  device_.Reserve(device + CopiesNeeded(device_, &shared_) + index_.PagesNeeded(index_growth_));
  tokens_.Grow(token_growth_);
  store_.Grow(store_growth_);
  index_.Grow(index_growth_);
}

void RetroCache::Take(const StepSequence& part, const Needs& needs) {
  WaveSequence& sequence = Get(part.id);
  if (!part.decode) {
    std::fill(sequence.filled.begin(), sequence.filled.end(), uint8_t{0});
    if (!needs.parts.empty()) PrepareBuild(part.id, &sequence, needs.parts);
    return;
  }
  sequence.steady.MakeOwn();
  sequence.steady.Extend(needs.steady);
  sequence.cache.Extend(needs.cache);
  sequence.buffer.Extend(needs.buffer);
  if (needs.adopt) Adopt(&sequence);
  if (!needs.parts.empty()) {
    StartBuild(part.id, &sequence, needs.parts, /*from_ring=*/!sequence.prompt);
    if (part.past - shape_.recent >= sequence.pending.back().end) Adopt(&sequence);
  }
  sequence.prompt = false;
}

void RetroCache::BeginStep(const Step& step) {
  check_(step, tokens_);
  buffer_.Settle();
  decoding_.clear();
  prefilling_.clear();
  needs_.clear();
  for (const StepSequence& part : step.sequences) {
    WaveSequence& sequence = Get(part.id);
    DropBuild(&sequence);
    // A prompt's chunk reads the store, and a copied page must not change.
    if (!part.decode && sequence.build != nullptr) sequence.build->WaitAll();
    needs_.push_back(Plan(part));
  }
  Reserve(step);
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSequence& part = step.sequences[i];
    Take(part, needs_[i]);
    (part.decode ? decoding_ : prefilling_).push_back({part, &Get(part.id)});
  }
}

void RetroCache::EndStep(const Step& step) {
  for (const StepSequence& part : step.sequences) {
    tokens_.Commit(part.id, part.rows);
    if (part.decode) continue;
    WaveSequence& sequence = Get(part.id);
    store_.Commit(part.id, tokens_.Length(part.id) - store_.Length(part.id));
    sequence.prompt = true;
    if (sequence.build == nullptr || sequence.build->storing()) continue;
    const std::vector<WavePart>& parts = sequence.build->parts();
    sequence.pending.insert(sequence.pending.end(), parts.begin(), parts.end());
    index_.Commit(part.id, sequence.all_clusters() - index_.Length(part.id));
    sequence.build->Store();
  }
  decoding_.clear();
  prefilling_.clear();
}

void RetroCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                        const MatrixView& k, const MatrixView& v, float scale,
                        const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, scale, out);
  if (!prefilling_.empty()) Prefill(stream, layer, q, k, v, scale, out);
}

// ---- decode ----

void RetroCache::Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                        const MatrixView& v, float scale, const MatrixView& out) {
  for (const View& view : decoding_) {
    // Clusters that are not used yet may take their time, unless their rows' slots are needed.
    WaveSequence& sequence = *view.sequence;
    if (sequence.build != nullptr && sequence.pending.empty()) sequence.build->Wait(layer);
  }
  Fill(stream, layer);
  Append(layer, k, v);
  Select(stream, layer, q, scale);
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
    // What the index is asked for, and what it knows without rows, beside the rows' way.
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
    ops::ClusterEstimate(stream, shape_.group, estimates_);
    CountAccesses(layer, accesses);
    buffer_.WaitTransfer();
    buffer_.StartUpdate();
  }
  AttendZones(stream, layer, accesses, q, scale, out);
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
    // Rows that are not stored are in their slots.
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
  if (!selects_.empty()) ops::ClusterSelect(stream, shape_.group, selects_);
  if (imposed_ != nullptr) ImposeClusters(layer);
  stats_.bytes_scored += clusters * (shape_.format.row_bytes() / 2);
}

void RetroCache::ImposeClusters(int64_t layer) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < selects_.size(); ++i) {
    const ops::ClusterSelectWork& select = selects_[i];
    const StepSequence& part = decoding_[select_views_[i]].part;
    // A sequence's heads follow each other.
    const int64_t head = static_cast<int64_t>(i) % shape_.layout.kv_heads;
    order.resize(static_cast<size_t>(select.count));
    imposed_->Clusters(layer, head, part.past, part.first_row, select.count, select.count,
                       order.data());
    int32_t* next = select.ids;
    int32_t* const end = next + select.ranked_count + select.unranked_count;
    for (const int32_t id : order) {
      if (next == end) break;
      if (select.scores[id] >= 0) *next++ = id;  // not an empty one
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
                             const MatrixView& q, float scale, const MatrixView& out) {
  const int64_t d = shape_.layout.head_dim;
  parts_.clear();
  part_begins_.clear();
  attends_.clear();
  size_t access = 0;
  for (const View& view : decoding_) {
    const WaveSequence& sequence = *view.sequence;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      part_begins_.push_back(parts_.size());
      const int64_t row = view.part.first_row, offset = head * shape_.group * d;
      attends_.push_back({.q = q.Row<float>(row) + offset, .out = out.Row<float>(row) + offset});
      const ops::PagedRows steady = SteadyRows(sequence, shape_.List(layer, head));
      const auto add = [&](int64_t begin, int64_t count) {
        if (count > 0) {
          parts_.push_back({.rows = steady, .indices = nullptr, .begin = begin, .count = count});
        }
      };
      add(0, std::min(shape_.sink, view.n()));
      if (sequence.clusters > 0) {
        const WaveAccess& a = accesses[access];
        const ops::ClusterEstimateWork& estimate = estimates_[access++];
        parts_.push_back({.rows = a.Rows(shape_),
                          .indices = a.slots.data(),
                          .begin = 0,
                          .count = static_cast<int64_t>(a.slots.size())});
        attends_.back().states = estimate.states;
        attends_.back().state_count = ops::EstimateStates(estimate.count);
      }
      // The ring, from the oldest row to its end, then from its beginning.
      const int64_t count = view.n() - sequence.indexed_end;
      if (count <= 0) continue;
      const int64_t first = shape_.SteadySlot(sequence.indexed_end);
      const int64_t run = std::min(count, shape_.sink + shape_.ring() - first);
      add(first, run);
      add(shape_.sink, count - run);
    }
  }
  part_begins_.push_back(parts_.size());
  uint64_t rows = 0;
  for (size_t i = 0; i < attends_.size(); ++i) {
    attends_[i].parts = std::span<const ops::RowPart>(parts_).subspan(
        part_begins_[i], part_begins_[i + 1] - part_begins_[i]);
  }
  for (const ops::RowPart& part : parts_) rows += static_cast<uint64_t>(part.count);
  ops::RowAttention(stream, shape_.format, shape_.group, attends_, scale);
  stats_.bytes_read += rows * shape_.format.row_bytes();
  stats_.bytes_written += attends_.size() * shape_.format.row_bytes();
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
                         const MatrixView& v, float scale, const MatrixView& out) {
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
  ops::Attention(stream, geometry, views_, q, shape_.layout.q_heads, scale, out);
  stats_.bytes_read += seen * heads * shape_.format.row_bytes();
  stats_.bytes_written += rows * heads * shape_.format.row_bytes();
  stats_.prefill.rows += rows * heads;
  stats_.prefill.bytes += rows * heads * shape_.format.row_bytes();
  // Nothing of this layer is read before its first decode step.
  for (const View& view : prefilling_) {
    IndexBuild* build = view.sequence->build.get();
    if (build != nullptr && !build->storing()) {
      build->Start(layer, Lists(view.part.id, *view.sequence, layer, /*from_ring=*/false));
    }
  }
}

// ---- what it holds ----

RetroCache::IndexInfo RetroCache::Index(SequenceId id) const {
  const WaveSequence& sequence = *sequences_.at(id);
  return {sequence.indexed_end, sequence.clusters, sequence.nprobe, sequence.estimated};
}

std::vector<float> RetroCache::Cluster(SequenceId id, int64_t layer, int64_t head,
                                       int64_t cluster) {
  WaveSequence& sequence = Get(id);
  if (sequence.build != nullptr) sequence.build->WaitAll();
  return AsFloats(shape_.format, Clusters(id, shape_.List(layer, head)).Row(cluster));
}

std::vector<std::vector<float>> RetroCache::ClusterRows(SequenceId id, int64_t layer, int64_t head,
                                                        int64_t cluster) {
  WaveSequence& sequence = Get(id);
  if (sequence.build != nullptr) sequence.build->WaitAll();
  const int64_t list = shape_.List(layer, head);
  const int32_t begin = sequence.begins[static_cast<size_t>(list)][static_cast<size_t>(cluster)];
  std::vector<std::vector<float>> rows;
  for (int32_t i = 0; i < Clusters(id, list).Size(cluster); ++i) {
    rows.push_back(AsFloats(shape_.format, StoreRows(id, list).Row(begin + i)));
  }
  return rows;
}

std::vector<int32_t> RetroCache::Cached(SequenceId id, int64_t layer, int64_t head) {
  buffer_.Settle();
  return Get(id).caches[static_cast<size_t>(shape_.List(layer, head))].Contents();
}

std::vector<std::vector<float>> RetroCache::CachedRows(SequenceId id, int64_t layer, int64_t head,
                                                       int64_t cluster) {
  buffer_.Settle();
  const int64_t list = shape_.List(layer, head);
  const WaveSequence& sequence = Get(id);
  const BlockCache& cache = sequence.caches[static_cast<size_t>(list)];
  const ops::PagedRows rows{sequence.cache.Pages(list).data(), shape_.page_block_rows,
                            shape_.format};
  std::vector<std::vector<float>> found;
  int32_t left = Clusters(id, list).Size(cluster);
  for (int32_t block = cache.First(static_cast<int32_t>(cluster)); block != BlockCache::kNone;
       block = cache.Next(block)) {
    for (int64_t i = 0; i < shape_.o.block_tokens && left > 0; ++i, --left) {
      found.push_back(AsFloats(shape_.format, rows.Row(block * shape_.o.block_tokens + i)));
    }
  }
  return found;
}

Stats RetroCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_, &host_, &stats);
  AddLookups(heads_, &stats);
  return stats;
}

}  // namespace litecache::kv
