// One layer for a step's decode sequences.
#include <algorithm>
#include <numeric>

#include "device/sections.h"
#include "lab/policies/pqcache/pq_cache_cpu.h"

namespace litecache::lab::pqcache {

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
    // Generated since then (a fork's first step).
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
      if (state.index == nullptr) {  // attends every row
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
  if (forced_ == nullptr) return;
  Mark(stream, Section::kOverride);
  ForceRows(layer);
}

void PqCache::ForceRows(int64_t layer) {
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const Sequence& state = Get(sequence);
    if (state.index == nullptr) continue;  // attends every row
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      Choice& choice = ChoiceOf(i, head);
      forced_->Rows(layer, head, sequence.past, sequence.first_row, shape_.sink,
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
    AdmissionOf(sequence.id, layer).arrived->Wait();  // blocks admitted by the last step
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
      // Its code is computed from the stored row. It is first used when the row has left the
      // window.
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
      // Sums over lookups, each of which is one row here.
      HeadCounters& counters = Head(layer, head);
      counters.recall_refreshes += static_cast<uint64_t>(k);
      counters.recall_retrieved += static_cast<double>(k) * recall;
      counters.recall_held += static_cast<double>(k) * recall;
    }
  }
}

void PqCache::Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                     const MatrixView& v, const ops::Softmax& softmax, const MatrixView& out) {
  const SectionScope section(stream, Section::kManagement);
  for (const StepSequence& sequence : decoding_) {
    Sequence& state = Get(sequence);
    if (state.index != nullptr) Fill(stream, layer, sequence);
  }
  Mark(stream, Section::kRetrieval);
  Select(stream, layer, q, softmax.scale);
  Mark(stream, Section::kManagement);
  Gather(stream, layer);
  Mark(stream, Section::kManagement);
  Append(stream, layer, k, v);
  if (recall_) MeasureRecall(stream, layer, q, softmax.scale);

  Mark(stream, Section::kAttention);
  attended_.Clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const Sequence& state = Get(sequence);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const Choice& choice = ChoiceOf(i, head);
      attended_.Begin(
          head * shape_.group, Query(q, sequence, head),
          out.Row<float>(sequence.first_row) + head * shape_.group * shape_.layout.head_dim);
      if (state.index != nullptr) {
        attended_.Add(RowsOf(sequences_.window(), state.window, layer, head), 0,
                      shape_.WindowSlots(state.rows));
        if (!choice.hits.empty()) {  // a cache without blocks has no pages
          attended_.Add({.rows = RowsOf(sequences_.cache(), state.cache, layer, head),
                         .indices = choice.hit_slots.data(),
                         .begin = 0,
                         .count = static_cast<int64_t>(choice.hits.size())});
        }
        attended_.Add(Staged(i, head), 0, static_cast<int64_t>(choice.misses.size()));
      } else {
        // The new row comes after the others.
        const ops::SlotRows staged = Staged(i, head);
        std::copy_n(RowsOf(sequences_.store(), sequence.id, layer, head).Row(sequence.past),
                    shape_.format.row_bytes(), staged.Row(sequence.past));
        attended_.Add(staged, 0, sequence.past + 1);
      }
    }
  }
  const uint64_t rows = attended_.Attend(stream, shape_.format, shape_.group, softmax);
  Mark(stream, Section::kManagement);
  stats_.bytes_read += rows * shape_.format.row_bytes();
  for (size_t i = 0; i < decoding_.size(); ++i) Update(layer, i);
}

}  // namespace litecache::lab::pqcache
