#include "lab/policies/infinigen/infinigen_cache_cpu.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/sections.h"
#include "kv/pages/pool_stats.h"
#include "lab/policies/infinigen/infinigen_cache.h"
#include "lab/policies/infinigen/options.h"

namespace litecache::lab::infinigen {

InfiniGenCache::InfiniGenCache(Device& device, const Shape& shape, const KvOptions& options,
                               const Profile* profile, const TierBytes& budget)
    : WithShape(shape),
      device_(device, shape.pages.page_bytes, budget.device, "KV cache, device tier"),
      host_(device, shape.pages.page_bytes, budget.host, "KV cache, host store"),
      store_(shape_.StoreTable(), host_),
      partial_(shape_.PartialTable(), device_),
      staging_(device_),
      speculation_(shape_, options.settings.Of<InfiniGenOptions>(), profile),
      prefill_(shape.layout, store_),
      recall_(options.measure_recall
                  ? std::make_optional<RecallMeter>(shape.layout, options, shape.pages.page_bytes)
                  : std::nullopt),
      heads_(static_cast<size_t>(shape.layout.layers * shape.layout.kv_heads)) {}

InfiniGenCache::~InfiniGenCache() { Settle(); }

SequenceId InfiniGenCache::Create() {
  const SequenceId id = store_.Create();
  State& state = states_[id];
  state.partial = partial_.Create();
  state.channels.sums.assign(
      static_cast<size_t>(shape_.sparse_layers() * shape_.layout.kv_heads * speculation_.width()),
      0);
  return id;
}

SequenceId InfiniGenCache::Fork(SequenceId parent) {
  const SequenceId id = store_.Fork(parent);
  State state = states_.at(parent);
  state.partial = partial_.Fork(state.partial);
  states_.emplace(id, std::move(state));
  return id;
}

void InfiniGenCache::Release(SequenceId id) {
  Settle();
  staging_.Drop();  // left by a failed step
  store_.Release(id);
  partial_.Release(states_.at(id).partial);
  states_.erase(id);
}

void InfiniGenCache::Settle() {
  for (Buffer& buffer : buffers_) {
    buffer.arrived->Wait();
    buffer.layer = -1;
  }
}

void InfiniGenCache::BeginStep(const Step& step) {
  check_(step, store_);
  Settle();
  staging_.Drop();
  in_step_ = false;
  store_growth_.clear();
  partial_growth_.clear();
  int64_t staging = 0;
  for (const StepSequence& sequence : step.sequences) {
    store_growth_.push_back({sequence.id, sequence.rows});
    if (!sequence.decode) continue;
    const int64_t n = sequence.past + 1;
    const SequenceId partial = states_.at(sequence.id).partial;
    partial_growth_.push_back({partial, n - partial_.Length(partial)});
    staging += shape_.StagingPages(n);
  }
  // Everything that can throw comes first.
  host_.Reserve(store_.PagesNeeded(store_growth_));
  device_.Reserve(partial_.PagesNeeded(partial_growth_) + staging);
  store_.Grow(store_growth_);
  partial_.Grow(partial_growth_);
  staging_.Take(staging);

  decoding_.clear();
  prefilling_.clear();
  staging_begins_.clear();
  int64_t page = 0;
  for (const StepSequence& sequence : step.sequences) {
    (sequence.decode ? decoding_ : prefilling_).push_back(sequence);
    if (!sequence.decode) continue;
    Channels& channels = states_.at(sequence.id).channels;
    if (channels.chosen.empty()) speculation_.Choose(&channels);
    for (int64_t buffer = 0; buffer < Shape::kBuffers; ++buffer) {
      staging_begins_.push_back(page);
      page += shape_.layout.kv_heads * shape_.BufferPages(buffer, sequence.past + 1);
    }
  }
  const int64_t sums = shape_.sparse_layers() * shape_.layout.kv_heads * speculation_.width();
  pending_sums_.assign(prefilling_.size() * static_cast<size_t>(sums), 0);
  in_step_ = true;
  for (int64_t layer = 0; layer < std::min(Shape::kBuffers, shape_.dense_layers); ++layer) {
    FetchAll(layer);
  }
}

ops::SlotRows InfiniGenCache::Staged(int64_t layer, size_t sequence, int64_t head) const {
  const int64_t buffer = layer % Shape::kBuffers;
  const int64_t begin = staging_begins_[sequence * Shape::kBuffers + static_cast<size_t>(buffer)] +
                        head * shape_.BufferPages(buffer, decoding_[sequence].past + 1);
  return {staging_.data() + begin, shape_.pages.page_tokens, shape_.format};
}

void InfiniGenCache::Fetch(int64_t layer, Traffic* traffic) {
  Buffer& buffer = BufferOf(layer);
  buffer.layer = layer;
  buffer.slots.resize(buffer.positions.size());
  buffer.moves.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const int64_t first = buffer.firsts[Item(i, head)], count = buffer.counts[Item(i, head)];
      if (count == 0) continue;
      std::iota(buffer.slots.begin() + first, buffer.slots.begin() + first + count, 0);
      buffer.moves.push_back({.source = Stored(decoding_[i].id, layer, head),
                              .target = Staged(layer, i, head),
                              .positions = buffer.positions.data() + first,
                              .slots = buffer.slots.data() + first,
                              .count = count});
    }
  }
  traffic->rows += buffer.positions.size();
  traffic->bytes += buffer.positions.size() * shape_.format.row_bytes();
  if (!buffer.moves.empty()) mover_.Move(buffer.arrived, &buffer.moves);
}

void InfiniGenCache::FetchAll(int64_t layer) {
  Buffer& buffer = BufferOf(layer);
  buffer.positions.clear();
  buffer.firsts.clear();
  buffer.counts.clear();
  for (const StepSequence& sequence : decoding_) {
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const size_t first = buffer.positions.size();
      buffer.firsts.push_back(static_cast<int64_t>(first));
      buffer.counts.push_back(sequence.past);
      buffer.positions.resize(first + static_cast<size_t>(sequence.past));
      std::iota(buffer.positions.begin() + static_cast<int64_t>(first), buffer.positions.end(), 0);
    }
  }
  Fetch(layer, &stats_.stream);
}

void InfiniGenCache::EncodeMissing(Stream& stream, int64_t layer) {
  for (const StepSequence& sequence : decoding_) {
    const State& state = states_.at(sequence.id);
    const int64_t encoded = partial_.Length(state.partial);
    if (encoded >= sequence.past) continue;
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      speculation_.Encode(stream, layer, head, state.channels, Stored(sequence.id, layer, head),
                          encoded, sequence.past,
                          partial_.Lists(state.partial)[shape_.PartialList(layer, head)]);
    }
  }
}

void InfiniGenCache::Speculate(Stream& stream, int64_t layer, const MatrixView& q, float scale,
                               bool predicted) {
  const SectionScope section(stream, Section::kRetrieval);
  EncodeMissing(stream, layer);
  speculated_.clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    if (sequence.past == 0) continue;
    const State& state = states_.at(sequence.id);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      speculated_.push_back(
          {.channels = &state.channels,
           .sequence = static_cast<int64_t>(i),
           .head = head,
           .q = Query(q, sequence, head),
           .partial = partial_.Lists(state.partial)[shape_.PartialList(layer, head)],
           .past = sequence.past});
    }
  }
  if (!speculated_.empty()) speculation_.Select(stream, layer, scale, speculated_);

  Mark(stream, forced_ == nullptr ? Section::kManagement : Section::kOverride);
  Buffer& buffer = BufferOf(layer);
  buffer.positions.clear();
  const size_t items = decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  buffer.firsts.assign(items, 0);
  buffer.counts.assign(items, 0);
  for (const Speculated& item : speculated_) {
    const size_t index = Item(static_cast<size_t>(item.sequence), item.head);
    const auto count = static_cast<int64_t>(item.positions.size());
    buffer.firsts[index] = static_cast<int64_t>(buffer.positions.size());
    buffer.counts[index] = count;
    std::span<const int32_t> positions = item.positions;
    if (forced_ != nullptr) {
      forced_rows_.resize(item.positions.size());
      forced_->Rows(layer, item.head, item.past, item.sequence, 0, item.past, count,
                    forced_rows_.data());
      positions = forced_rows_;
    }
    buffer.positions.insert(buffer.positions.end(), positions.begin(), positions.end());
    HeadCounters& counters = Head(layer, item.head);
    ++counters.lookups;
    counters.rows_selected += static_cast<uint64_t>(count);
    counters.rows_moved += static_cast<uint64_t>(count);
    stats_.bytes_scored += static_cast<uint64_t>(item.past * shape_.partial.token_bytes());
    if (!recall_ || count == item.past) continue;
    ++counters.recall_refreshes;
    counters.recall_retrieved += recall_->Measure(
        stream, Stored(decoding_[static_cast<size_t>(item.sequence)].id, layer, item.head), item.q,
        scale, 0, item.past, count, positions);
  }
  Mark(stream, Section::kTransfer);
  Fetch(layer, predicted ? &stats_.prefetch : &stats_.miss);
}

void InfiniGenCache::Prefetch(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                              float scale) {
  LC_CHECK(layer >= 1 && layer < shape_.layout.layers && q.rows >= step.decode_rows);
  if (decoding_.empty() || !WantsPrediction(layer)) return;
  Speculate(stream, layer, q, scale, /*predicted=*/true);
}

void InfiniGenCache::Append(int64_t layer, const MatrixView& k, const MatrixView& v) {
  const int64_t d = shape_.layout.head_dim;
  const ops::RowFormat f32{ops::RowEncoding::kF32, d};
  row_.resize(static_cast<size_t>(2 * d));
  const Buffer& buffer = BufferOf(layer);
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      std::copy_n(k.Row<float>(sequence.first_row) + head * d, d, row_.data());
      std::copy_n(v.Row<float>(sequence.first_row) + head * d, d, row_.data() + d);
      std::byte* staged = Staged(layer, i, head).Row(buffer.counts[Item(i, head)]);
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row_.data()), shape_.format, staged);
      std::copy_n(staged, shape_.format.row_bytes(),
                  Stored(sequence.id, layer, head).Row(sequence.past));
    }
  }
  const auto rows = decoding_.size() * static_cast<size_t>(shape_.layout.kv_heads);
  stats_.spill.rows += rows;
  stats_.spill.bytes += rows * shape_.format.row_bytes();
  stats_.bytes_written += rows * shape_.format.row_bytes();
}

void InfiniGenCache::MeasureHeld(Stream& stream, int64_t layer, const MatrixView& q, float scale) {
  const Buffer& buffer = BufferOf(layer);
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const int64_t first = buffer.firsts[Item(i, head)], count = buffer.counts[Item(i, head)];
      if (sequence.past == 0) continue;
      Head(layer, head).recall_held +=
          count == sequence.past
              ? 1
              : recall_->Measure(stream, Stored(sequence.id, layer, head), Query(q, sequence, head),
                                 scale, 0, sequence.past, count,
                                 {buffer.positions.data() + first, static_cast<size_t>(count)});
    }
  }
}

void InfiniGenCache::Decode(Stream& stream, int64_t layer, const MatrixView& q, const MatrixView& k,
                            const MatrixView& v, const ops::Softmax& softmax,
                            const MatrixView& out) {
  const bool dense = layer < shape_.dense_layers;
  Buffer& buffer = BufferOf(layer);
  if (buffer.layer != layer) {
    if (dense) {
      FetchAll(layer);
    } else {
      Speculate(stream, layer, q, softmax.scale, /*predicted=*/false);
    }
  }
  const SectionScope section(stream, Section::kTransfer);
  buffer.arrived->Wait();
  Mark(stream, Section::kManagement);
  Append(layer, k, v);
  if (recall_ && !dense) MeasureHeld(stream, layer, q, softmax.scale);
  Mark(stream, dense ? Section::kManagement : Section::kRetrieval);  // keys were encoded
  attended_.Clear();
  for (size_t i = 0; i < decoding_.size(); ++i) {
    const StepSequence& sequence = decoding_[i];
    const State& state = states_.at(sequence.id);
    for (int64_t head = 0; head < shape_.layout.kv_heads; ++head) {
      const int64_t count = buffer.counts[Item(i, head)] + 1;
      attended_.Begin(
          head * shape_.group, Query(q, sequence, head),
          out.Row<float>(sequence.first_row) + head * shape_.group * shape_.layout.head_dim);
      attended_.Add(Staged(layer, i, head), 0, count);
      if (dense) continue;
      speculation_.Encode(stream, layer, head, state.channels, Stored(sequence.id, layer, head),
                          sequence.past, sequence.past + 1,
                          partial_.Lists(state.partial)[shape_.PartialList(layer, head)]);
    }
  }
  Mark(stream, Section::kAttention);
  const uint64_t rows = attended_.Attend(stream, shape_.format, shape_.group, softmax);
  Mark(stream, Section::kTransfer);
  stats_.bytes_read += rows * shape_.format.row_bytes();
  buffer.layer = -1;
  if (layer + Shape::kBuffers < shape_.dense_layers) FetchAll(layer + Shape::kBuffers);
}

void InfiniGenCache::Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
                            const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
                            const MatrixView& out) {
  LC_CHECK(layer >= 0 && layer < shape_.layout.layers);
  LC_CHECK(in_step_ && decoding_.size() + prefilling_.size() == step.sequences.size(),
           "Attend() outside of BeginStep/EndStep");
  if (!decoding_.empty()) Decode(stream, layer, q, k, v, softmax, out);
  if (prefilling_.empty()) return;
  prefill_.Attend(stream, layer, prefilling_, q, k, v, softmax, out, &stats_);
  if (layer < shape_.dense_layers) return;
  const int64_t of_layer = shape_.layout.kv_heads * speculation_.width();
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    double* sums =
        pending_sums_.data() +
        (static_cast<int64_t>(i) * shape_.sparse_layers() + layer - shape_.dense_layers) * of_layer;
    std::fill_n(sums, of_layer, 0.0);
    speculation_.AddSums(stream, layer, prefilling_[i].first_row, prefilling_[i].rows, q, k, sums);
  }
}

void InfiniGenCache::EndStep(const Step& step) {
  for (const StepSequence& sequence : step.sequences) store_.Commit(sequence.id, sequence.rows);
  for (const StepSequence& sequence : decoding_) {
    const SequenceId partial = states_.at(sequence.id).partial;
    partial_.Commit(partial, sequence.past + 1 - partial_.Length(partial));
  }
  for (size_t i = 0; i < prefilling_.size(); ++i) {
    State& state = states_.at(prefilling_[i].id);
    std::vector<double>& sums = state.channels.sums;
    const double* more = pending_sums_.data() + i * sums.size();
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += more[c];
    // The next token chooses again, over the whole prompt.
    state.channels.chosen.clear();
    partial_.Release(state.partial);
    state.partial = partial_.Create();
  }
  staging_.Drop();
  decoding_.clear();
  prefilling_.clear();
  in_step_ = false;
}

std::vector<int32_t> InfiniGenCache::Fetched(int64_t layer, int64_t sequence, int64_t head) const {
  const Buffer& buffer = buffers_[static_cast<size_t>(layer % Shape::kBuffers)];
  const size_t item = Item(static_cast<size_t>(sequence), head);
  const auto first = buffer.positions.begin() + buffer.firsts[item];
  return {first, first + buffer.counts[item]};
}

std::vector<int32_t> InfiniGenCache::ChosenChannels(SequenceId id, int64_t layer,
                                                    int64_t head) const {
  const std::vector<int32_t>& chosen = states_.at(id).channels.chosen;
  if (chosen.empty()) return {};
  const auto first = chosen.begin() + shape_.PartialList(layer, head) * shape_.partial.rank;
  return {first, first + shape_.partial.rank};
}

Stats InfiniGenCache::GetStats() const {
  Stats stats = stats_;
  AddPools(device_, &host_, &stats);
  AddLookups(heads_, &stats);
  return stats;
}

std::unique_ptr<Cache> CreateCpuCache(Device& device, const Shape& shape, const KvOptions& options,
                                      const Profile* profile, const TierBytes& budget,
                                      std::shared_ptr<const ForcedSelection> forced) {
  auto cache = std::make_unique<InfiniGenCache>(device, shape, options, profile, budget);
  cache->Force(std::move(forced));
  return cache;
}

}  // namespace litecache::lab::infinigen
