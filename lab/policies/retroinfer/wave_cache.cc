#include "lab/policies/retroinfer/wave_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/pages/pool_stats.h"

namespace litecache::lab {
namespace {

// A table without lists has no pages; any page size serves, and few blocks are counted.
constexpr TableShape kNoLists{0, int64_t{1} << 30, 0};

}  // namespace

WaveCache::WaveCache(Device& device, Device& host, const RetroShape& shape, const TierBytes& budget,
                     uint64_t host_slab_bytes)
    : WithShape(shape),
      memory_(device),
      device_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_(host, shape.pages.page_bytes, budget.host, "KV cache, host store", host_slab_bytes),
      tokens_(kNoLists, device_),
      store_(shape_.StoreTable(), host_),
      index_(shape_.IndexTable(), device_),
      heads_(static_cast<size_t>(shape.lists)) {}

std::unique_ptr<WaveSequence> WaveCache::NewSequence(const WaveSequence* parent) {
  return parent == nullptr ? std::make_unique<WaveSequence>(shape_, device_)
                           : std::make_unique<WaveSequence>(shape_, device_, *parent);
}

SequenceId WaveCache::Create() {
  const SequenceId id = tokens_.Create();
  LC_CHECK(store_.Create() == id && index_.Create() == id);
  auto sequence = NewSequence(nullptr);
  sequence->indexed_end = shape_.sink;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

SequenceId WaveCache::Fork(SequenceId parent) {
  const int64_t length = tokens_.Length(parent);
  Settle();
  WaveSequence& source = Get(parent);
  DropBuild(&source);
  // Rows of the store change their order once, before they are shared.
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
  sequences_.emplace(id, NewSequence(&source));
  return id;
}

void WaveCache::Release(SequenceId id) {
  tokens_.Length(id);  // throws if the sequence does not exist
  Settle();
  sequences_.erase(id);  // its build must end before the pages are destroyed
  tokens_.Release(id);
  store_.Release(id);
  index_.Release(id);
}

// ---- the index ----

std::vector<WavePart> WaveCache::PromptParts(const WaveSequence& sequence, int64_t clustered_end,
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

WaveCache::Needs WaveCache::Plan(const StepSequence& part) const {
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
  // Rows are clustered as soon as they exist and used when they have left the recent window, which
  // gives threads that many steps for the work. The steady zone contains all of them by then.
  const bool filled = std::all_of(sequence.filled.begin(), sequence.filled.end(),
                                  [](uint8_t layer) { return layer != 0; });
  if (filled && part.past >= end + shape_.o.update_tokens) {
    needs.parts.push_back(
        {end, end + shape_.o.update_tokens, sequence.all_clusters(), shape_.update});
  }
  return needs;
}

void WaveCache::DropBuild(WaveSequence* sequence) {
  if (sequence->build == nullptr || sequence->build->storing()) return;
  sequence->build->Undo();
  sequence->build.reset();
}

void WaveCache::PrepareBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts) {
  if (sequence->build != nullptr) sequence->build->WaitAll();
  const auto clusters =
      static_cast<size_t>(parts.back().first_cluster + parts.back().growth.clusters);
  for (auto& begins : sequence->begins) begins.resize(clusters, 0);
  sequence->build = NewBuild(id, sequence, std::move(parts));
}

void WaveCache::StartBuild(SequenceId id, WaveSequence* sequence, std::vector<WavePart> parts,
                           bool from_ring) {
  const int64_t rows = parts.back().end - store_.Length(id);
  const int64_t clusters =
      parts.back().first_cluster + parts.back().growth.clusters - index_.Length(id);
  // Pending clusters of an earlier chunk or fork remain: they are adopted in the next decode step.
  sequence->pending.insert(sequence->pending.end(), parts.begin(), parts.end());
  PrepareBuild(id, sequence, std::move(parts));
  RunBuild(id, sequence, from_ring);
  if (rows > 0) {
    store_.Commit(id, rows);
    const auto moved = static_cast<uint64_t>(rows * shape_.lists);
    stats_.spill.rows += moved;
    stats_.spill.bytes += moved * shape_.format.row_bytes();
  }
  index_.Commit(id, clusters);
}

void WaveCache::Adopt(WaveSequence* sequence) {
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

void WaveCache::Reserve(const Step& step) {
  token_growth_.clear();
  store_growth_.clear();
  index_growth_.clear();
  shared_.clear();
  int64_t device = 0;  // pages in addition to those of the tables
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
    device += MissingStaging(part);
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

void WaveCache::Take(const StepSequence& part, const Needs& needs) {
  WaveSequence& sequence = Get(part.id);
  TakeStaging(part);
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

void WaveCache::BeginStep(const Step& step) {
  check_(step, tokens_);
  Settle();
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

void WaveCache::EndStep(const Step& step) {
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

// ---- contents ----

std::vector<float> WaveCache::StoredRow(const std::byte* row) const {
  std::vector<float> floats(static_cast<size_t>(2 * shape_.format.head_dim));
  ops::ConvertRow(shape_.format, row, {ops::RowEncoding::kF32, shape_.format.head_dim},
                  reinterpret_cast<std::byte*>(floats.data()));
  return floats;
}

std::vector<float> WaveCache::DeviceRow(const std::byte* row) const {
  std::vector<std::byte> copy(shape_.format.row_bytes());
  memory_.Download(copy.data(), row, copy.size());
  return StoredRow(copy.data());
}

WaveCache::IndexInfo WaveCache::Index(SequenceId id) const {
  const WaveSequence& sequence = *sequences_.at(id);
  return {sequence.indexed_end, sequence.clusters, sequence.nprobe, sequence.estimated};
}

std::vector<float> WaveCache::Cluster(SequenceId id, int64_t layer, int64_t head, int64_t cluster) {
  WaveSequence& sequence = Get(id);
  if (sequence.build != nullptr) sequence.build->WaitAll();
  return DeviceRow(Clusters(id, shape_.List(layer, head)).Row(cluster));
}

std::vector<std::vector<float>> WaveCache::ClusterRows(SequenceId id, int64_t layer, int64_t head,
                                                       int64_t cluster) {
  WaveSequence& sequence = Get(id);
  if (sequence.build != nullptr) sequence.build->WaitAll();
  const int64_t list = shape_.List(layer, head);
  const int32_t begin = sequence.begins[static_cast<size_t>(list)][static_cast<size_t>(cluster)];
  const int32_t size = sequence.Size(list, cluster);
  std::vector<std::vector<float>> rows;
  rows.reserve(static_cast<size_t>(size));
  for (int32_t i = 0; i < size; ++i) {
    rows.push_back(StoredRow(StoreRows(id, list).Row(begin + i)));
  }
  return rows;
}

std::vector<int32_t> WaveCache::Cached(SequenceId id, int64_t layer, int64_t head) {
  Settle();
  return Get(id).caches[static_cast<size_t>(shape_.List(layer, head))].Contents();
}

std::map<int32_t, std::vector<std::vector<float>>> WaveCache::CachedRows(SequenceId id,
                                                                         int64_t layer,
                                                                         int64_t head) {
  Settle();
  const int64_t list = shape_.List(layer, head);
  const WaveSequence& sequence = Get(id);
  const BlockCache& cache = sequence.caches[static_cast<size_t>(list)];
  std::vector<std::vector<std::byte>> copies;  // of the pages
  std::vector<std::byte*> pages;
  for (const std::byte* page : sequence.cache.Pages(list)) {
    copies.emplace_back(shape_.pages.page_bytes);
    memory_.Download(copies.back().data(), page, copies.back().size());
    pages.push_back(copies.back().data());
  }
  const ops::PagedRows rows{pages.data(), shape_.page_block_rows, shape_.format};
  std::map<int32_t, std::vector<std::vector<float>>> found;
  for (const int32_t cluster : cache.Contents()) {
    int32_t left = sequence.Size(list, cluster);
    for (int32_t block = cache.First(cluster); block != BlockCache::kNone;
         block = cache.Next(block)) {
      for (int64_t i = 0; i < shape_.o.block_tokens && left > 0; ++i, --left) {
        found[cluster].push_back(StoredRow(rows.Row(block * shape_.o.block_tokens + i)));
      }
    }
  }
  return found;
}

Stats WaveCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_, &host_, &stats);
  AddLookups(heads_, &stats);
  return stats;
}

}  // namespace litecache::lab
