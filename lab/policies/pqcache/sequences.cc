#include "lab/policies/pqcache/sequences.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "lab/policies/pqcache/options.h"

namespace litecache::lab::pqcache {
namespace {

// The original has one process per (KV head, part), on as many cores as there are.
int ClusterThreads(const Shape& shape) {
  const int64_t tasks = shape.layout.kv_heads * shape.codes.subspaces;
  return static_cast<int>(std::min<int64_t>(tasks, AvailableCores()));
}

}  // namespace

std::vector<int64_t> LayerState::CountUses(int64_t past,
                                           std::vector<std::pair<int64_t, int64_t>> counts) {
  counted_at = past;
  // Largest count first, ties by the lower block.
  const auto listed =
      static_cast<int64_t>(std::min(counts.size(), static_cast<size_t>(blocks.capacity())));
  const auto fuller = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  if (listed < static_cast<int64_t>(counts.size())) {
    std::nth_element(counts.begin(), counts.begin() + listed, counts.end(), fuller);
  }
  std::sort(counts.begin(), counts.begin() + listed, fuller);
  // The fullest block last: the last of the new ones is the safest from eviction by the others.
  std::vector<int64_t> fresh_blocks;
  for (int64_t i = listed; i > 0; --i) {
    bool fresh = false;
    const int64_t block = counts[static_cast<size_t>(i - 1)].second;
    blocks.Use(block, &fresh);
    if (fresh) fresh_blocks.push_back(block);
  }
  // A later one may have replaced an earlier one.
  std::erase_if(fresh_blocks, [this](int64_t block) { return blocks.SlotOf(block) < 0; });
  return fresh_blocks;
}

Sequences::Sequences(Device& device, Device& host, const Shape& shape, const KvOptions& options,
                     const TierBytes& budget, std::function<void(SequenceId)> settle)
    : shape_(shape),
      iterations_(options.settings.Of<PqCacheOptions>().iterations),
      settle_(std::move(settle)),
      device_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_(host, shape.pages.page_bytes, budget.host, "KV cache, host store"),
      store_(shape.RowTable(), host_),
      codes_(shape.CodeTable(), device_),
      window_(shape.RowTable(), device_),
      cache_(shape.RowTable(), device_),
      clustering_(ClusterThreads(shape)) {}

Sequences::~Sequences() {
  for (auto& [id, sequence] : sequences_) {
    Settle(id, &sequence);
    for (const PageId page : sequence.codebook_ids) device_.DropReference(page);
  }
}

SequenceId Sequences::Create() {
  const SequenceId id = store_.Create();
  Sequence& sequence = sequences_[id];
  sequence.codes = codes_.Create();
  sequence.window = window_.Create();
  sequence.cache = cache_.Create();
  sequence.layers.resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

SequenceId Sequences::Fork(SequenceId parent) {
  const SequenceId id = store_.Fork(parent);
  Sequence& from = sequences_.at(parent);
  from.shared = true;
  Sequence sequence;
  sequence.shared = true;
  sequence.ready = from.ready;
  sequence.rows = from.rows;
  sequence.index = from.index;
  sequence.codes = codes_.Fork(from.codes);
  // Window and cache are rebuilt from the store: their contents belong to the parent.
  sequence.window = window_.Create();
  sequence.cache = cache_.Create();
  sequence.layers.resize(static_cast<size_t>(shape_.layout.layers));
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void Sequences::Settle(SequenceId id, Sequence* sequence) {
  settle_(id);
  // Clustering reads the store's pages of the sequence that started it.
  if (sequence->index != nullptr) sequence->index->WaitAll();
}

void Sequences::Reset(SequenceId id, Sequence* sequence) {
  Settle(id, sequence);
  for (const PageId page : sequence->codebook_ids) device_.DropReference(page);
  sequence->codebook_ids.clear();
  sequence->codebooks.clear();
  codes_.Release(sequence->codes);
  window_.Release(sequence->window);
  cache_.Release(sequence->cache);
  sequence->codes = codes_.Create();
  sequence->window = window_.Create();
  sequence->cache = cache_.Create();
  sequence->layers.clear();
  sequence->layers.resize(static_cast<size_t>(shape_.layout.layers));
  sequence->index = nullptr;
  sequence->ready = false;
}

void Sequences::Release(SequenceId id) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.shared) {
    // Threads may still read pages here that their own sequence has since copied.
    for (auto& [other, others] : sequences_) {
      if (others.index != nullptr) others.index->WaitAll();
      if (other != id) settle_(other);
    }
  }
  Reset(id, &sequence);
  store_.Release(id);
  codes_.Release(sequence.codes);
  window_.Release(sequence.window);
  cache_.Release(sequence.cache);
  sequences_.erase(id);
}

std::shared_ptr<Index> Sequences::NewIndex(const StepSequence& sequence) const {
  const int64_t n = sequence.past + sequence.rows;
  if (!sequence.ends_prompt || !shape_.Indexed(n)) return nullptr;
  return std::make_shared<Index>(shape_, n, iterations_);
}

void Sequences::StartLayer(SequenceId id, int64_t tokens, int64_t layer, const Index::Ready& ready,
                           Index* index) {
  LC_CHECK(index->tokens() == tokens);
  std::vector<ops::PagedRows> rows;
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    rows.push_back(RowsOf(store_, id, layer, head));
  }
  index->Start(clustering_, layer, rows, ready);
}

void Sequences::Prepare(const StepSequence& step) {
  Sequence& sequence = Get(step.id);
  if (sequence.ready) return;
  const int64_t tokens = step.past;
  sequence.rows = shape_.Rows(tokens);
  if (shape_.Indexed(tokens)) {
    // If the prompt's end was not announced, or only in a part of the layers.
    if (sequence.index == nullptr) {
      sequence.index = std::make_shared<Index>(shape_, tokens, iterations_);
    }
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      if (sequence.index->started(layer)) continue;
      StartLayer(
          step.id, tokens, layer, [] { return 0.0; }, sequence.index.get());
    }
  }
  sequence.ready = true;
}

void Sequences::Reserve(const Step& step, int64_t staging) {
  store_growth_.clear();
  codes_growth_.clear();
  window_growth_.clear();
  cache_growth_.clear();
  int64_t codebooks = 0;
  for (const StepSequence& part : step.sequences) {
    store_growth_.push_back({part.id, part.rows});
    if (!part.decode) continue;
    const Sequence& sequence = Get(part.id);
    if (sequence.index == nullptr) continue;
    const int64_t n = part.past + 1;
    const auto grow = [](const SequenceTable& table, SequenceId id, int64_t rows,
                         std::vector<SequenceTable::Growth>* growths) {
      if (rows > table.Length(id)) growths->push_back({id, rows - table.Length(id)});
    };
    grow(codes_, sequence.codes, n, &codes_growth_);
    grow(window_, sequence.window, shape_.WindowSlots(sequence.rows), &window_growth_);
    grow(cache_, sequence.cache, shape_.CachedBlocks(n) * shape_.block_tokens, &cache_growth_);
    if (sequence.codebook_ids.empty()) codebooks += shape_.CodebookPages();
  }
  host_.Reserve(store_.PagesNeeded(store_growth_));
  device_.Reserve(codes_.PagesNeeded(codes_growth_) + window_.PagesNeeded(window_growth_) +
                  cache_.PagesNeeded(cache_growth_) + codebooks + staging);
}

void Sequences::Grow(const Step& step) {
  store_.Grow(store_growth_);
  codes_.Grow(codes_growth_);
  window_.Grow(window_growth_);
  cache_.Grow(cache_growth_);
  for (const auto& growth : window_growth_) window_.Commit(growth.id, growth.rows);
  for (const auto& growth : cache_growth_) cache_.Commit(growth.id, growth.rows);
  for (const StepSequence& part : step.sequences) {
    Sequence& sequence = Get(part.id);
    if (!part.decode || sequence.index == nullptr) continue;
    for (LayerState& layer : sequence.layers) {
      layer.blocks.SetCapacity(shape_.CachedBlocks(part.past + 1));
    }
    if (!sequence.codebook_ids.empty()) continue;
    for (int64_t i = 0; i < shape_.CodebookPages(); ++i) {
      sequence.codebook_ids.push_back(device_.Take());
      sequence.codebooks.push_back(device_.data(sequence.codebook_ids.back()));
    }
  }
}

void Sequences::Commit(const StepSequence& part, std::shared_ptr<Index> index) {
  Sequence& sequence = Get(part.id);
  store_.Commit(part.id, part.rows);
  if (!part.decode) {
    Reset(part.id, &sequence);
    sequence.index = std::move(index);
  } else if (sequence.index != nullptr) {
    codes_.Commit(sequence.codes, part.past + 1 - codes_.Length(sequence.codes));
  }
}

float* Sequences::Codebook(const Sequence& sequence, int64_t layer, int64_t head) const {
  const int64_t list = shape_.List(layer, head), a_page = shape_.codebooks_a_page();
  return reinterpret_cast<float*>(sequence.codebooks[static_cast<size_t>(list / a_page)] +
                                  static_cast<uint64_t>(list % a_page) * shape_.codebook_bytes());
}

}  // namespace litecache::lab::pqcache
