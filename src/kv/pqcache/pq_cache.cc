#include "kv/pqcache/pq_cache.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kv/pool_stats.h"

namespace litecache::kv::pqcache {
namespace {

using Clock = std::chrono::steady_clock;

// The original has a process a (KV head, part), on as many cores as there are.
int ClusterThreads(const Shape& shape) {
  const int64_t tasks = shape.layout.kv_heads * shape.codes.subspaces;
  return static_cast<int>(std::min<int64_t>(tasks, AvailableCores()));
}

}  // namespace

PqCache::PqCache(Device& device, const Shape& shape, const KvOptions& options,
                 const TierBytes& budget)
    : shape_(shape),
      iterations_(options.pqcache.iterations),
      device_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_(device, shape.pages.page_bytes, budget.host, "KV cache, host store"),
      store_(shape_.RowTable(), host_),
      codes_(shape_.CodeTable(), device_),
      window_(shape_.RowTable(), device_),
      cache_(shape_.RowTable(), device_),
      staging_(device_),
      prefill_(shape.layout, store_),
      recall_(options.measure_recall
                  ? std::make_optional<RecallMeter>(shape.layout, options, shape.pages.page_bytes)
                  : std::nullopt),
      heads_(static_cast<size_t>(shape.lists())),
      clustering_(ClusterThreads(shape)) {}

PqCache::~PqCache() {
  growing_.clear();
  for (auto& [id, state] : states_) {
    Settle(&state);
    for (const PageId page : state.codebook_ids) device_.DropReference(page);
  }
}

SequenceId PqCache::Create() {
  const SequenceId id = store_.Create();
  State& state = states_[id];
  state.codes = codes_.Create();
  state.window = window_.Create();
  state.cache = cache_.Create();
  state.layers.resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

SequenceId PqCache::Fork(SequenceId parent) {
  const SequenceId id = store_.Fork(parent);
  State& from = states_.at(parent);
  from.shared = true;
  State state;
  state.shared = true;
  state.ready = from.ready;
  state.rows = from.rows;
  state.index = from.index;
  state.codes = codes_.Fork(from.codes);
  // Window and cache are made again from the store: what was there is the parent's.
  state.window = window_.Create();
  state.cache = cache_.Create();
  state.layers.resize(static_cast<size_t>(shape_.layout.layers));
  states_.emplace(id, std::move(state));
  return id;
}

void PqCache::Settle(State* state) {
  for (LayerState& layer : state->layers) layer.arrived->Wait();
  // Clustering reads the store's pages of the sequence that started it.
  if (state->index != nullptr) state->index->WaitAll();
}

ops::PagedRows PqCache::Kept(ops::PagedRows rows, int64_t blocks,
                             std::vector<std::vector<std::byte*>>* pages) const {
  pages->emplace_back(rows.pages, rows.pages + blocks);
  rows.pages = pages->back().data();
  return rows;
}

void PqCache::Reset(State* state) {
  Settle(state);
  for (const PageId page : state->codebook_ids) device_.DropReference(page);
  state->codebook_ids.clear();
  state->codebooks.clear();
  codes_.Release(state->codes);
  window_.Release(state->window);
  cache_.Release(state->cache);
  state->codes = codes_.Create();
  state->window = window_.Create();
  state->cache = cache_.Create();
  state->layers.clear();
  state->layers.resize(static_cast<size_t>(shape_.layout.layers));
  state->index = nullptr;
  state->ready = false;
}

void PqCache::Release(SequenceId id) {
  growing_.clear();  // of a step that failed, as its staging
  staging_.Drop();
  State& state = states_.at(id);
  if (state.shared) {
    // Threads may read pages here that the sequence they work for has since copied.
    for (auto& [other, others_state] : states_) Settle(&others_state);
  }
  Reset(&state);
  store_.Release(id);
  codes_.Release(state.codes);
  window_.Release(state.window);
  cache_.Release(state.cache);
  states_.erase(id);
}

void PqCache::StartLayer(const StepSequence& sequence, int64_t tokens, int64_t layer,
                         double seconds, Index* index) {
  LC_CHECK(index->tokens() == tokens);
  std::vector<ops::PagedRows> rows;
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    rows.push_back(RowsOf(store_, sequence.id, layer, head));
  }
  index->Start(clustering_, layer, rows, seconds);
}

void PqCache::Prepare(const StepSequence& sequence, State* state) {
  if (state->ready) return;
  const int64_t tokens = sequence.past;
  state->rows = shape_.Rows(tokens);
  if (shape_.Indexed(tokens)) {
    // Where the prompt's end was not announced, or in a part of the layers only.
    if (state->index == nullptr) {
      state->index = std::make_shared<Index>(shape_, tokens, iterations_);
    }
    for (int64_t layer = 0; layer < shape_.layout.layers; ++layer) {
      if (!state->index->started(layer)) StartLayer(sequence, tokens, layer, 0, state->index.get());
    }
  }
  state->ready = true;
}

void PqCache::BeginStep(const Step& step) {
  check_(step, store_);
  in_step_ = false;
  staging_.Drop();
  growing_.clear();  // of a step that failed: its rows will be written anew
  store_growth_.clear();
  codes_growth_.clear();
  window_growth_.clear();
  cache_growth_.clear();
  int64_t staging = 0, codebooks = 0;
  for (const StepSequence& sequence : step.sequences) {
    store_growth_.push_back({sequence.id, sequence.rows});
    if (!sequence.decode) continue;
    State& state = StateOf(sequence);
    Prepare(sequence, &state);
    const int64_t n = sequence.past + 1;
    staging += shape_.layout.kv_heads * shape_.pages.BlocksFor(StagedRows(state, n));
    if (state.index == nullptr) continue;
    const auto grow = [](const SequenceTable& table, SequenceId id, int64_t rows,
                         std::vector<SequenceTable::Growth>* growths) {
      if (rows > table.Length(id)) growths->push_back({id, rows - table.Length(id)});
    };
    grow(codes_, state.codes, n, &codes_growth_);
    grow(window_, state.window, shape_.WindowSlots(state.rows), &window_growth_);
    grow(cache_, state.cache, shape_.CachedBlocks(n) * shape_.block_tokens, &cache_growth_);
    if (state.codebook_ids.empty()) codebooks += shape_.CodebookPages();
  }
  // Everything that can throw comes first.
  host_.Reserve(store_.PagesNeeded(store_growth_));
  device_.Reserve(codes_.PagesNeeded(codes_growth_) + window_.PagesNeeded(window_growth_) +
                  cache_.PagesNeeded(cache_growth_) + codebooks + staging);
  store_.Grow(store_growth_);
  codes_.Grow(codes_growth_);
  window_.Grow(window_growth_);
  cache_.Grow(cache_growth_);
  for (const auto& growth : window_growth_) window_.Commit(growth.id, growth.rows);
  for (const auto& growth : cache_growth_) cache_.Commit(growth.id, growth.rows);
  staging_.Take(staging);

  decoding_.clear();
  prefilling_.clear();
  staging_begins_.clear();
  int64_t page = 0;
  for (const StepSequence& sequence : step.sequences) {
    (sequence.decode ? decoding_ : prefilling_).push_back(sequence);
    State& state = StateOf(sequence);
    if (!sequence.decode) {
      const int64_t n = sequence.past + sequence.rows;
      growing_.push_back(sequence.ends_prompt && shape_.Indexed(n)
                             ? std::make_shared<Index>(shape_, n, iterations_)
                             : nullptr);
      continue;
    }
    staging_begins_.push_back(page);
    page += shape_.layout.kv_heads * shape_.pages.BlocksFor(StagedRows(state, sequence.past + 1));
    if (state.index == nullptr) continue;
    for (LayerState& layer : state.layers) {
      layer.blocks.SetCapacity(shape_.CachedBlocks(sequence.past + 1));
    }
    if (!state.codebook_ids.empty()) continue;
    for (int64_t i = 0; i < shape_.CodebookPages(); ++i) {
      state.codebook_ids.push_back(device_.Take());
      state.codebooks.push_back(device_.data(state.codebook_ids.back()));
    }
  }
  choices_.resize(decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads));
  layer_start_.reset();
  in_step_ = true;
}

float* PqCache::Codebook(const State& state, int64_t layer, int64_t head) const {
  const int64_t list = shape_.List(layer, head), a_page = shape_.codebooks_a_page();
  return reinterpret_cast<float*>(state.codebooks[static_cast<size_t>(list / a_page)] +
                                  static_cast<uint64_t>(list % a_page) * shape_.codebook_bytes());
}

ops::SlotRows PqCache::Staged(size_t sequence, int64_t head) const {
  const StepSequence& part = decoding_[sequence];
  const int64_t pages = shape_.pages.BlocksFor(StagedRows(states_.at(part.id), part.past + 1));
  return {staging_.data() + staging_begins_[sequence] + head * pages, shape_.pages.page_tokens,
          shape_.format};
}

void PqCache::Fill(Stream& stream, int64_t layer, const StepSequence& sequence, State* state) {
  LayerState& own = state->layers[static_cast<size_t>(layer)];
  if (own.filled) return;
  Index& index = *state->index;
  index.Wait(layer);
  const int64_t d = shape_.layout.head_dim, past = sequence.past;
  const int64_t begin = std::max(codes_.Length(state->codes), shape_.sink);
  const int64_t labelled = std::min(index.tokens(), past);
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    const std::vector<float>& centroids = index.Centroids(layer, head);
    std::copy(centroids.begin(), centroids.end(), Codebook(*state, layer, head));
    const ops::PagedMetadata codes = CodesOf(*state, layer, head);
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      const std::vector<uint8_t>& labels = index.Codes(layer, head, part);
      for (int64_t t = begin; t < labelled; ++t) {
        *shape_.codes.Code(codes, t, part) = labels[static_cast<size_t>(t - shape_.sink)];
      }
    }
    // Generated since (a fork's first step).
    const int64_t first = std::max(begin, labelled);
    if (first >= past) continue;
    keys_.resize(static_cast<size_t>((past - first) * 2 * d));
    const ops::PagedRows rows = RowsOf(store_, sequence.id, layer, head);
    for (int64_t t = first; t < past; ++t) {
      ops::ConvertRow(rows.format, rows.Row(t), {ops::RowEncoding::kF32, d},
                      reinterpret_cast<std::byte*>(keys_.data() + (t - first) * 2 * d));
    }
    const ops::PqEncodeWork encode{.keys = keys_.data(),
                                   .key_stride = 2 * d,
                                   .begin = first,
                                   .count = past - first,
                                   .centroids = Codebook(*state, layer, head),
                                   .metadata = codes};
    ops::PqEncode(stream, shape_.codes, d, {&encode, 1});
  }
  // Sink and recent rows.
  indices_.clear();
  for (int64_t t = 0; t < shape_.sink; ++t) indices_.push_back(static_cast<int32_t>(t));
  for (int64_t t = past - state->rows; t < past; ++t) indices_.push_back(static_cast<int32_t>(t));
  const size_t count = indices_.size();
  for (size_t i = 0; i < count; ++i) {
    indices_.push_back(static_cast<int32_t>(WindowSlot(*state, indices_[i])));
  }
  moves_.clear();
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    moves_.push_back({.source = RowsOf(store_, sequence.id, layer, head),
                      .target = RowsOf(window_, state->window, layer, head),
                      .positions = indices_.data(),
                      .slots = indices_.data() + count,
                      .count = static_cast<int64_t>(count)});
  }
  ops::MoveRows(stream, moves_);
  const auto rows = static_cast<uint64_t>(shape_.layout.kv_heads) * count;
  stats_.fill.rows += rows;
  stats_.fill.bytes += rows * shape_.format.row_bytes();
  own.filled = true;
}

void PqCache::Select(Stream& stream, int64_t layer, const MatrixView& q, float scale) {
  selects_.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    State& state = StateOf(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      Choice& choice = ChoiceOf(i, head);
      choice.positions.clear();
      if (state.index == nullptr) {  // every row
        choice.positions.resize(static_cast<size_t>(sequence.past));
        std::iota(choice.positions.begin(), choice.positions.end(), 0);
        continue;
      }
      const int64_t end = sequence.past - state.rows;
      const int64_t candidates = end - shape_.sink;
      if (state.rows == 0 || candidates <= 0) continue;
      choice.positions.resize(static_cast<size_t>(std::min(state.rows, candidates)));
      if (candidates <= state.rows) {
        std::iota(choice.positions.begin(), choice.positions.end(),
                  static_cast<int32_t>(shape_.sink));
        continue;
      }
      selects_.push_back({.q = Query(q, sequence, head),
                          .centroids = Codebook(state, layer, head),
                          .scale = scale,
                          .metadata = CodesOf(state, layer, head),
                          .selection = {.begin = shape_.sink,
                                        .end = end,
                                        .k = state.rows,
                                        .positions = choice.positions.data()}});
      stats_.bytes_scored += static_cast<uint64_t>(candidates * shape_.codes.token_bytes());
    }
  }
  if (!selects_.empty())
    ops::PqSelect(stream, shape_.codes, shape_.group, shape_.layout.head_dim, selects_);
  if (imposed_ != nullptr) ImposeRows(layer);
}

void PqCache::ImposeRows(int64_t layer) {
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const State& state = StateOf(sequence);
    if (state.index == nullptr) continue;  // every row
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      Choice& choice = ChoiceOf(i, head);
      imposed_->Rows(layer, head, sequence.past, sequence.first_row, shape_.sink,
                     sequence.past - state.rows, static_cast<int64_t>(choice.positions.size()),
                     choice.positions.data());
    }
  }
}

void PqCache::Gather(Stream& stream, int64_t layer) {
  moves_.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    State& state = StateOf(sequence);
    LayerState& own = state.layers[static_cast<size_t>(layer)];
    own.arrived->Wait();  // blocks that the last step admitted
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      Choice& choice = ChoiceOf(i, head);
      choice.hits.clear();
      choice.hit_slots.clear();
      choice.misses.clear();
      int64_t block = -1, slot = -1;
      for (const int32_t position : choice.positions) {
        if (state.index == nullptr) {
          choice.misses.push_back(position);
          continue;
        }
        if (shape_.Block(position) != block) {
          block = shape_.Block(position);
          slot = own.blocks.SlotOf(block);
        }
        if (slot < 0) {
          choice.misses.push_back(position);
          continue;
        }
        choice.hits.push_back(position);
        choice.hit_slots.push_back(static_cast<int32_t>(
            slot * shape_.block_tokens + (position - shape_.sink) % shape_.block_tokens));
      }
      choice.staged.resize(choice.misses.size());
      std::iota(choice.staged.begin(), choice.staged.end(), 0);
      Traffic& traffic = state.index == nullptr ? stats_.stream : stats_.miss;
      traffic.rows += choice.misses.size();
      traffic.bytes += choice.misses.size() * shape_.format.row_bytes();
      if (!choice.misses.empty()) {
        moves_.push_back({.source = RowsOf(store_, sequence.id, layer, head),
                          .target = Staged(i, head),
                          .positions = choice.misses.data(),
                          .slots = choice.staged.data(),
                          .count = static_cast<int64_t>(choice.misses.size())});
      }
      if (state.index == nullptr || choice.positions.empty()) continue;
      HeadCounters& counters = Head(layer, head);
      counters.lookups += choice.positions.size();
      counters.hits += choice.hits.size();
      counters.rows_selected += choice.positions.size();
      counters.rows_moved += choice.misses.size();
    }
  }
  ops::MoveRows(stream, moves_);
}

void PqCache::Append(Stream& stream, int64_t layer, const MatrixView& k, const MatrixView& v) {
  const int64_t d = shape_.layout.head_dim;
  const ops::RowFormat f32{ops::RowEncoding::kF32, d};
  encodes_.clear();
  keys_.resize(decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads * 2 * d));
  float* row = keys_.data();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const State& state = StateOf(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head, row += 2 * d) {
      std::copy_n(k.Row<float>(sequence.first_row) + head * d, d, row);
      std::copy_n(v.Row<float>(sequence.first_row) + head * d, d, row + d);
      std::byte* stored = RowsOf(store_, sequence.id, layer, head).Row(sequence.past);
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row), shape_.format, stored);
      if (state.index == nullptr) continue;
      std::copy_n(stored, shape_.format.row_bytes(),
                  RowsOf(window_, state.window, layer, head).Row(WindowSlot(state, sequence.past)));
      // Its code: as of the row that is stored. It is asked for when the window has passed it.
      ops::ConvertRow(shape_.format, stored, f32, reinterpret_cast<std::byte*>(row));
      encodes_.push_back({.keys = row,
                          .key_stride = 2 * d,
                          .begin = sequence.past,
                          .count = 1,
                          .centroids = Codebook(state, layer, head),
                          .metadata = CodesOf(state, layer, head)});
    }
  }
  if (!encodes_.empty()) ops::PqEncode(stream, shape_.codes, d, encodes_);
  const auto rows = decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  stats_.spill.rows += rows;
  stats_.spill.bytes += rows * shape_.format.row_bytes();
  stats_.bytes_written += rows * shape_.format.row_bytes();
}

void PqCache::Update(int64_t layer, size_t index) {
  const StepSequence& sequence = decoding_[index];
  State& state = StateOf(sequence);
  LayerState& own = state.layers[static_cast<size_t>(layer)];
  if (state.index == nullptr || own.counted_at == sequence.past) return;
  own.counted_at = sequence.past;
  // How many selected rows each block has, all heads together; whole blocks only.
  std::map<int64_t, int64_t> counts;
  const int64_t whole = shape_.WholeBlocks(sequence.past);
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    for (const int32_t position : ChoiceOf(index, head).positions) {
      if (shape_.Block(position) < whole) ++counts[shape_.Block(position)];
    }
  }
  std::vector<std::pair<int64_t, int64_t>> order;  // (-count, block): most first, then the lower
  for (const auto& [block, count] : counts) order.emplace_back(-count, block);
  const auto room = static_cast<size_t>(own.blocks.capacity());
  const size_t listed = std::min(order.size(), room);
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(listed), order.end());
  // The fullest block last: of those that are new, the last one is the safest from the others.
  std::vector<int64_t> fresh_blocks;
  for (size_t i = listed; i > 0; --i) {
    bool fresh = false;
    own.blocks.Use(order[i - 1].second, &fresh);
    if (fresh) fresh_blocks.push_back(order[i - 1].second);
  }
  own.positions.clear();
  own.slots.clear();
  for (const int64_t block : fresh_blocks) {
    const int64_t slot = own.blocks.SlotOf(block);
    if (slot < 0) continue;  // a later one took its place
    for (int64_t i = 0; i < shape_.block_tokens; ++i) {
      own.positions.push_back(static_cast<int32_t>(shape_.sink + block * shape_.block_tokens + i));
      own.slots.push_back(static_cast<int32_t>(slot * shape_.block_tokens + i));
    }
  }
  if (own.positions.empty()) return;
  own.moves.clear();
  own.pages.clear();
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    own.moves.push_back({.source = Kept(RowsOf(store_, sequence.id, layer, head),
                                        store_.Blocks(sequence.id), &own.pages),
                         .target = Kept(RowsOf(cache_, state.cache, layer, head),
                                        cache_.Blocks(state.cache), &own.pages),
                         .positions = own.positions.data(),
                         .slots = own.slots.data(),
                         .count = static_cast<int64_t>(own.positions.size())});
  }
  const uint64_t rows = static_cast<uint64_t>(shape_.layout.kv_heads) * own.positions.size();
  stats_.admit.rows += rows;
  stats_.admit.bytes += rows * shape_.format.row_bytes();
  mover_.Move(own.arrived, &own.moves);
}

void PqCache::MeasureRecall(Stream& stream, int64_t layer, const MatrixView& q, float scale) {
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const State& state = StateOf(sequence);
    if (state.index == nullptr) continue;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const Choice& choice = ChoiceOf(i, head);
      const int64_t end = sequence.past - state.rows;
      const auto k = static_cast<int64_t>(choice.positions.size());
      if (k == 0) continue;
      const double recall = end - shape_.sink <= k
                                ? 1
                                : recall_->Measure(stream, RowsOf(store_, sequence.id, layer, head),
                                                   Query(q, sequence, head), scale, shape_.sink,
                                                   end, k, choice.positions);
      // Sums over lookups, which count rows here.
      HeadCounters& counters = Head(layer, head);
      counters.recall_refreshes += static_cast<uint64_t>(k);
      counters.recall_retrieved += static_cast<double>(k) * recall;
      counters.recall_held += static_cast<double>(k) * recall;
    }
  }
}

void PqCache::Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                     const MatrixView& v, float scale, const MatrixView& out) {
  for (const StepSequence& sequence : decoding_) {
    State& state = StateOf(sequence);
    if (state.index != nullptr) Fill(stream, layer, sequence, &state);
  }
  Select(stream, layer, q, scale);
  Gather(stream, layer);
  Append(stream, layer, k, v);
  if (recall_) MeasureRecall(stream, layer, q, scale);

  parts_.clear();
  attends_.clear();
  constexpr size_t kMostParts = 3;
  parts_.reserve(kMostParts * decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads));
  uint64_t rows = 0;
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const State& state = StateOf(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const Choice& choice = ChoiceOf(i, head);
      const size_t first = parts_.size();
      const auto add = [&](const ops::PagedRows& source, const int32_t* indices, int64_t begin,
                           size_t count) {
        if (count == 0) return;
        parts_.push_back({.rows = source,
                          .indices = indices,
                          .begin = begin,
                          .count = static_cast<int64_t>(count)});
        rows += count;
      };
      if (state.index != nullptr) {
        add(RowsOf(window_, state.window, layer, head), nullptr, 0,
            static_cast<size_t>(shape_.WindowSlots(state.rows)));
        if (!choice.hits.empty()) {  // a cache of no blocks has no pages
          add(RowsOf(cache_, state.cache, layer, head), choice.hit_slots.data(), 0,
              choice.hits.size());
        }
        add(Staged(i, head), nullptr, 0, choice.misses.size());
      } else {
        // The new row behind the others.
        const ops::SlotRows staged = Staged(i, head);
        std::copy_n(RowsOf(store_, sequence.id, layer, head).Row(sequence.past),
                    shape_.format.row_bytes(), staged.Row(sequence.past));
        add(staged, nullptr, 0, static_cast<size_t>(sequence.past + 1));
      }
      attends_.push_back(
          {.q = Query(q, sequence, head),
           .out = out.Row<float>(sequence.first_row) + head * shape_.group * shape_.layout.head_dim,
           .parts = {parts_.data() + first, parts_.size() - first}});
    }
  }
  ops::RowAttention(stream, shape_.format, shape_.group, attends_, scale);
  stats_.bytes_read += rows * shape_.format.row_bytes();
  for (size_t i = 0; i < decoding_.size(); ++i) Update(layer, i);
}

void PqCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                     const MatrixView& k, const MatrixView& v, float scale, const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(in_step_ && decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, scale, out);
  if (prefilling_.empty()) return;
  const auto now = Clock::now();
  if (layer_start_) layer_seconds_ = std::chrono::duration<double>(now - *layer_start_).count();
  layer_start_ = now;
  prefill_.Attend(stream, layer, prefilling_, q, k, v, scale, out, &stats_);
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    const StepSequence& sequence = prefilling_[i];
    if (growing_[i] == nullptr) continue;
    StartLayer(sequence, sequence.past + sequence.rows, layer, layer_seconds_, growing_[i].get());
  }
}

void PqCache::EndStep(const Step& step) {
  for (const StepSequence& sequence : step.sequences) store_.Commit(sequence.id, sequence.rows);
  for (const StepSequence& sequence : decoding_) {
    const State& state = StateOf(sequence);
    if (state.index == nullptr) continue;
    codes_.Commit(state.codes, sequence.past + 1 - codes_.Length(state.codes));
  }
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    State& state = StateOf(prefilling_[i]);
    Reset(&state);
    state.index = std::move(growing_[i]);
  }
  staging_.Drop();
  decoding_.clear();
  prefilling_.clear();
  growing_.clear();
  in_step_ = false;
}

PqCache::Selected PqCache::SelectedRows(int64_t sequence, int64_t head) const {
  const Choice& choice = choices_[static_cast<size_t>(sequence * shape_.layout.kv_heads + head)];
  return {choice.hits, choice.misses};
}

const float* PqCache::Centroids(SequenceId id, int64_t layer, int64_t head) const {
  return Codebook(states_.at(id), layer, head);
}

int PqCache::CodeOf(SequenceId id, int64_t layer, int64_t head, int64_t token, int64_t part) const {
  return *shape_.codes.Code(CodesOf(states_.at(id), layer, head), token, part);
}

Stats PqCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_, &host_, &stats);
  AddLookups(heads_, &stats);
  return stats;
}

}  // namespace litecache::kv::pqcache
