#include "kv/pqcache/pq_cache.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/sections.h"
#include "kv/pages/pool_stats.h"

namespace litecache::kv::pqcache {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

PqCache::PqCache(Device& device, const Shape& shape, const KvOptions& options,
                 const TierBytes& budget)
    : WithShape(shape),
      sequences_(device, device, shape_, options, budget,
                 [this](SequenceId id) {
                   for (Admission& admission : admissions_.at(id)) admission.arrived->Wait();
                 }),
      staging_(sequences_.device()),
      prefill_(shape.layout, sequences_.store()),
      recall_(options.measure_recall
                  ? std::make_optional<RecallMeter>(shape.layout, options, shape.pages.page_bytes)
                  : std::nullopt),
      heads_(static_cast<size_t>(shape.lists())) {}

PqCache::~PqCache() { growing_.clear(); }

SequenceId PqCache::Create() {
  const SequenceId id = sequences_.Create();
  admissions_[id].resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

SequenceId PqCache::Fork(SequenceId parent) {
  const SequenceId id = sequences_.Fork(parent);
  admissions_[id].resize(static_cast<size_t>(shape_.layout.layers));
  return id;
}

ops::PagedRows PqCache::Kept(ops::PagedRows rows, int64_t blocks,
                             std::vector<std::vector<std::byte*>>* pages) const {
  pages->emplace_back(rows.pages, rows.pages + blocks);
  rows.pages = pages->back().data();
  return rows;
}

void PqCache::Release(SequenceId id) {
  growing_.clear();  // of a step that failed, as its staging
  staging_.Drop();
  sequences_.Release(id);
  admissions_.erase(id);
}

void PqCache::BeginStep(const Step& step) {
  check_(step, sequences_.store());
  in_step_ = false;
  staging_.Drop();
  growing_.clear();  // of a step that failed: its rows will be written anew
  const auto pages = [this](const StepSequence& part) {
    return shape_.layout.kv_heads * shape_.pages.BlocksFor(StagedRows(Get(part), part.past + 1));
  };
  int64_t staging = 0;
  for (const StepSequence& part : step.sequences) {
    if (!part.decode) continue;
    sequences_.Prepare(part);
    staging += pages(part);
  }
  sequences_.Reserve(step, staging);
  sequences_.Grow(step);
  staging_.Take(staging);

  decoding_.clear();
  prefilling_.clear();
  staging_begins_.clear();
  int64_t page = 0;
  for (const StepSequence& part : step.sequences) {
    (part.decode ? decoding_ : prefilling_).push_back(part);
    if (!part.decode) {
      growing_.push_back(sequences_.NewIndex(part));
      continue;
    }
    staging_begins_.push_back(page);
    page += pages(part);
  }
  choices_.resize(decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads));
  layer_start_.reset();
  in_step_ = true;
}

ops::SlotRows PqCache::Staged(size_t sequence, int64_t head) const {
  const StepSequence& part = decoding_[sequence];
  const int64_t pages = shape_.pages.BlocksFor(StagedRows(sequences_.Get(part.id), part.past + 1));
  return {staging_.data() + staging_begins_[sequence] + head * pages, shape_.pages.page_tokens,
          shape_.format};
}

void PqCache::Fill(Stream& stream, int64_t layer, const StepSequence& step) {
  Sequence& sequence = Get(step);
  LayerState& own = sequence.layers[static_cast<size_t>(layer)];
  if (own.filled) return;
  Index& index = *sequence.index;
  index.Wait(layer);
  const int64_t d = shape_.layout.head_dim, past = step.past;
  const int64_t begin = std::max(sequences_.codes().Length(sequence.codes), shape_.sink);
  const int64_t labelled = std::min(index.tokens(), past);
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    const std::vector<float>& centroids = index.Centroids(layer, head);
    std::copy(centroids.begin(), centroids.end(), sequences_.Codebook(sequence, layer, head));
    const ops::PagedMetadata codes = sequences_.CodesOf(sequence, layer, head);
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
    const ops::PagedRows rows = RowsOf(sequences_.store(), step.id, layer, head);
    for (int64_t t = first; t < past; ++t) {
      ops::ConvertRow(rows.format, rows.Row(t), {ops::RowEncoding::kF32, d},
                      reinterpret_cast<std::byte*>(keys_.data() + (t - first) * 2 * d));
    }
    const ops::PqEncodeWork encode{.keys = keys_.data(),
                                   .key_stride = 2 * d,
                                   .begin = first,
                                   .count = past - first,
                                   .centroids = sequences_.Codebook(sequence, layer, head),
                                   .metadata = codes};
    ops::PqEncode(stream, shape_.codes, d, {&encode, 1});
  }
  // Sink and recent rows.
  indices_.clear();
  for (int64_t t = 0; t < shape_.sink; ++t) indices_.push_back(static_cast<int32_t>(t));
  for (int64_t t = past - sequence.rows; t < past; ++t) indices_.push_back(static_cast<int32_t>(t));
  const size_t count = indices_.size();
  for (size_t i = 0; i < count; ++i) {
    indices_.push_back(static_cast<int32_t>(sequences_.WindowSlot(sequence, indices_[i])));
  }
  moves_.clear();
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    moves_.push_back({.source = RowsOf(sequences_.store(), step.id, layer, head),
                      .target = RowsOf(sequences_.window(), sequence.window, layer, head),
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
    Sequence& state = Get(sequence);
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
                          .centroids = sequences_.Codebook(state, layer, head),
                          .scale = scale,
                          .metadata = sequences_.CodesOf(state, layer, head),
                          .selection = {.begin = shape_.sink,
                                        .end = end,
                                        .k = state.rows,
                                        .positions = choice.positions.data()}});
      stats_.bytes_scored += static_cast<uint64_t>(candidates * shape_.codes.token_bytes());
    }
  }
  if (!selects_.empty())
    ops::PqSelect(stream, shape_.codes, shape_.group, shape_.layout.head_dim, selects_);
  if (imposed_ == nullptr) return;
  Mark(stream, Section::kImposed);
  ImposeRows(layer);
}

void PqCache::ImposeRows(int64_t layer) {
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const Sequence& state = Get(sequence);
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
    Sequence& state = Get(sequence);
    LayerState& own = state.layers[static_cast<size_t>(layer)];
    AdmissionOf(sequence.id, layer).arrived->Wait();  // blocks that the last step admitted
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
        moves_.push_back({.source = RowsOf(sequences_.store(), sequence.id, layer, head),
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
  Mark(stream, Section::kTransfer);
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
    const Sequence& state = Get(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head, row += 2 * d) {
      std::copy_n(k.Row<float>(sequence.first_row) + head * d, d, row);
      std::copy_n(v.Row<float>(sequence.first_row) + head * d, d, row + d);
      std::byte* stored = RowsOf(sequences_.store(), sequence.id, layer, head).Row(sequence.past);
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row), shape_.format, stored);
      if (state.index == nullptr) continue;
      std::copy_n(stored, shape_.format.row_bytes(),
                  RowsOf(sequences_.window(), state.window, layer, head)
                      .Row(sequences_.WindowSlot(state, sequence.past)));
      // Its code: as of the row that is stored. It is asked for when the window has passed it.
      ops::ConvertRow(shape_.format, stored, f32, reinterpret_cast<std::byte*>(row));
      encodes_.push_back({.keys = row,
                          .key_stride = 2 * d,
                          .begin = sequence.past,
                          .count = 1,
                          .centroids = sequences_.Codebook(state, layer, head),
                          .metadata = sequences_.CodesOf(state, layer, head)});
    }
  }
  Mark(stream, Section::kRetrieval);
  if (!encodes_.empty()) ops::PqEncode(stream, shape_.codes, d, encodes_);
  const auto rows = decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  stats_.spill.rows += rows;
  stats_.spill.bytes += rows * shape_.format.row_bytes();
  stats_.bytes_written += rows * shape_.format.row_bytes();
}

void PqCache::Update(int64_t layer, size_t index) {
  const StepSequence& sequence = decoding_[index];
  Sequence& state = Get(sequence);
  LayerState& own = state.layers[static_cast<size_t>(layer)];
  if (state.index == nullptr || own.counted_at == sequence.past) return;
  // How many selected rows each block has, all heads together; whole blocks only.
  std::map<int64_t, int64_t> counts;
  const int64_t whole = shape_.WholeBlocks(sequence.past);
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    for (const int32_t position : ChoiceOf(index, head).positions) {
      if (shape_.Block(position) < whole) ++counts[shape_.Block(position)];
    }
  }
  std::vector<std::pair<int64_t, int64_t>> listed;
  for (const auto& [block, count] : counts) listed.emplace_back(count, block);
  Admission& admission = AdmissionOf(sequence.id, layer);
  admission.positions.clear();
  admission.slots.clear();
  for (const int64_t block : own.CountUses(sequence.past, std::move(listed))) {
    const int64_t slot = own.blocks.SlotOf(block);
    for (int64_t i = 0; i < shape_.block_tokens; ++i) {
      admission.positions.push_back(
          static_cast<int32_t>(shape_.sink + block * shape_.block_tokens + i));
      admission.slots.push_back(static_cast<int32_t>(slot * shape_.block_tokens + i));
    }
  }
  if (admission.positions.empty()) return;
  admission.moves.clear();
  admission.pages.clear();
  for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
    admission.moves.push_back(
        {.source = Kept(RowsOf(sequences_.store(), sequence.id, layer, head),
                        sequences_.store().Blocks(sequence.id), &admission.pages),
         .target = Kept(RowsOf(sequences_.cache(), state.cache, layer, head),
                        sequences_.cache().Blocks(state.cache), &admission.pages),
         .positions = admission.positions.data(),
         .slots = admission.slots.data(),
         .count = static_cast<int64_t>(admission.positions.size())});
  }
  const uint64_t rows = static_cast<uint64_t>(shape_.layout.kv_heads) * admission.positions.size();
  stats_.admit.rows += rows;
  stats_.admit.bytes += rows * shape_.format.row_bytes();
  mover_.Move(admission.arrived, &admission.moves);
}

void PqCache::MeasureRecall(Stream& stream, int64_t layer, const MatrixView& q, float scale) {
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const Sequence& state = Get(sequence);
    if (state.index == nullptr) continue;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const Choice& choice = ChoiceOf(i, head);
      const int64_t end = sequence.past - state.rows;
      const auto k = static_cast<int64_t>(choice.positions.size());
      if (k == 0) continue;
      const double recall =
          end - shape_.sink <= k
              ? 1
              : recall_->Measure(stream, RowsOf(sequences_.store(), sequence.id, layer, head),
                                 Query(q, sequence, head), scale, shape_.sink, end, k,
                                 choice.positions);
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
  const SectionScope section(stream, Section::kManagement);
  for (const StepSequence& sequence : decoding_) {
    Sequence& state = Get(sequence);
    if (state.index != nullptr) Fill(stream, layer, sequence);
  }
  Mark(stream, Section::kRetrieval);
  Select(stream, layer, q, scale);
  Mark(stream, Section::kManagement);
  Gather(stream, layer);
  Mark(stream, Section::kManagement);
  Append(stream, layer, k, v);
  if (recall_) MeasureRecall(stream, layer, q, scale);

  Mark(stream, Section::kAttention);
  attended_.Clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const Sequence& state = Get(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const Choice& choice = ChoiceOf(i, head);
      attended_.Begin(Query(q, sequence, head), out.Row<float>(sequence.first_row) +
                                                    head * shape_.group * shape_.layout.head_dim);
      if (state.index != nullptr) {
        attended_.Add(RowsOf(sequences_.window(), state.window, layer, head), 0,
                      shape_.WindowSlots(state.rows));
        if (!choice.hits.empty()) {  // a cache of no blocks has no pages
          attended_.Add({.rows = RowsOf(sequences_.cache(), state.cache, layer, head),
                         .indices = choice.hit_slots.data(),
                         .begin = 0,
                         .count = static_cast<int64_t>(choice.hits.size())});
        }
        attended_.Add(Staged(i, head), 0, static_cast<int64_t>(choice.misses.size()));
      } else {
        // The new row behind the others.
        const ops::SlotRows staged = Staged(i, head);
        std::copy_n(RowsOf(sequences_.store(), sequence.id, layer, head).Row(sequence.past),
                    shape_.format.row_bytes(), staged.Row(sequence.past));
        attended_.Add(staged, 0, sequence.past + 1);
      }
    }
  }
  const uint64_t rows = attended_.Attend(stream, shape_.format, shape_.group, scale);
  Mark(stream, Section::kManagement);
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
    sequences_.StartLayer(
        sequence.id, sequence.past + sequence.rows, layer,
        [seconds = layer_seconds_] { return seconds; }, growing_[i].get());
  }
}

void PqCache::EndStep(const Step&) {
  for (const StepSequence& sequence : decoding_) sequences_.Commit(sequence, nullptr);
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    sequences_.Commit(prefilling_[i], std::move(growing_[i]));
  }
  staging_.Drop();
  decoding_.clear();
  prefilling_.clear();
  growing_.clear();
  in_step_ = false;
}

PqCache::Selected PqCache::SelectedRows(int64_t sequence, int64_t head) {
  const Choice& choice = ChoiceOf(static_cast<size_t>(sequence), head);
  return {choice.hits, choice.misses};
}

std::vector<float> PqCache::Centroids(SequenceId id, int64_t layer, int64_t head) {
  const float* centroids = sequences_.Codebook(sequences_.Get(id), layer, head);
  return {centroids, centroids + shape_.codes.clusters() * shape_.layout.head_dim};
}

std::vector<uint8_t> PqCache::Codes(SequenceId id, int64_t layer, int64_t head, int64_t tokens) {
  const ops::PagedMetadata codes = sequences_.CodesOf(sequences_.Get(id), layer, head);
  std::vector<uint8_t> all;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t part = 0; part < shape_.codes.subspaces; ++part) {
      all.push_back(*shape_.codes.Code(codes, t, part));
    }
  }
  return all;
}

Stats PqCache::GetStats() const {
  Stats stats = stats_;
  AddPools(sequences_.device(), &sequences_.host(), &stats);
  AddLookups(heads_, &stats);
  return stats;
}

}  // namespace litecache::kv::pqcache
