#include "kv/litecache/decode_cpu.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/sections.h"

namespace litecache::kv {
namespace {

// Above every cosine, so that every lookup misses.
constexpr float kAlwaysRefresh = 2;

}  // namespace

DecodePath::DecodePath(Tiers& tiers, Retriever& retriever, Spiller& spiller, RecallMeter* recall,
                       Counters& counters, const KvOptions& options,
                       std::shared_ptr<const ResultOverride> results)
    : tiers_(tiers),
      retriever_(retriever),
      spiller_(spiller),
      recall_(recall),
      counters_(counters),
      aggregation_(AggregationOf(options)),
      prediction_tau_(static_cast<float>(options.prediction_eta)),
      prediction_margin_(static_cast<float>(options.prediction_margin)),
      refresher_(tiers, retriever, options.delta_update),
      results_(std::move(results)) {}

template <class Body>
void DecodePath::ForEachOffloaded(int64_t layer, std::span<const SequenceView> sequences,
                                  const Body& body) {
  const Shape& shape = tiers_.shape;
  for (const SequenceView& sequence : sequences) {
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
      if (list >= 0) body(sequence, head, list);
    }
  }
}

void DecodePath::Prepare(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                         const MatrixView& q, float scale, bool predicted) {
  const SectionScope section(stream, Section::kManagement);
  spiller_.EncodeStored(stream, layer, sequences);
  Fill(stream, layer, sequences, scale);
  spills_.clear();
  for (const SequenceView& sequence : sequences) {
    const int64_t leaving = sequence.n() - tiers_.shape.recent;  // the first row of the new window
    if (leaving > sequence.stored) spills_.push_back({&sequence, sequence.stored, leaving});
  }
  spiller_.Run(stream, layer, spills_, &counters_.stats.spill);
  KeepAll(stream, layer, sequences, q);
  Decide(stream, layer, sequences, q, scale, predicted ? Lookups::kPredicted : Lookups::kActual);
}

void DecodePath::Verify(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                        const MatrixView& q, float scale) {
  const SectionScope section(stream, Section::kManagement);
  Decide(stream, layer, sequences, q, scale, Lookups::kVerifying);
}

void DecodePath::Fill(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                      float scale) {
  using Filled = SequenceSlots::Filled;
  const Shape& shape = tiers_.shape;
  const auto filled = [&](const SequenceView& sequence) -> Filled& {
    return sequence.slots->filled[static_cast<size_t>(layer)];
  };
  refreshes_.clear();
  moves_.clear();
  size_t fixed = 0;
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    if (filled(sequence) == Filled::kAll) return;
    fixed += static_cast<size_t>(shape.CacheBegin());
    if (filled(sequence) == Filled::kCachedRows) return;
    const int64_t past = sequence.past;
    HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
    ClearSlots(&slots);
    SetWindow(shape.RecentBegin(past), &slots);
    if (shape.Candidates(past) == 0) return;
    refreshes_.push_back({.sequence = &sequence,
                          .head = head,
                          .q = tiers_.slots.Label(*sequence.slots, list),
                          .begin = shape.SinkRows(past),
                          .end = shape.RecentBegin(past),
                          .k = shape.Rows(past),
                          .capacity = shape.CacheSlots(past)});
  });
  if (fixed == 0) return;
  refresher_.Run(stream, layer, scale, /*results=*/nullptr, refreshes_);
  uint64_t moved = 0;
  for (const RefreshWork& item : refreshes_) moved += static_cast<uint64_t>(item.moved);

  // Rows that are not in the store yet are in their slots.
  indices_.resize(2 * fixed);
  int32_t* next = indices_.data();
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    if (filled(sequence) == Filled::kAll) return;
    int32_t* positions = next;
    int64_t count = 0;
    const auto add = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) positions[count++] = static_cast<int32_t>(t);
    };
    const bool ring_only = filled(sequence) == Filled::kCachedRows;
    const int64_t sink = std::min(shape.SinkRows(sequence.past), sequence.stored);
    if (!ring_only) add(0, sink);
    // A head that has kept its cached rows also attends rows that have left the window since.
    add(ring_only ? std::max(sink, sequence.past - shape.recent - shape.carry)
                  : shape.RecentBegin(sequence.past),
        sequence.stored);
    if (count == 0) return;  // the store may have no page of this sequence yet
    int32_t* slots = positions + count;
    for (int64_t i = 0; i < count; ++i) {
      slots[i] = static_cast<int32_t>(shape.FixedSlot(positions[i]));
    }
    next = slots + count;
    moves_.push_back(
        {.source = sequence.Rows(shape, layer, head),
         .target = tiers_.geometry.Rows(sequence.slots->heads[static_cast<size_t>(list)]),
         .positions = positions,
         .slots = slots,
         .count = count});
    moved += static_cast<uint64_t>(count);
  });
  ops::MoveRows(stream, moves_);
  counters_.stats.fill.rows += moved;
  counters_.stats.fill.bytes += moved * shape.store_format.row_bytes();
  for (const SequenceView& sequence : sequences) filled(sequence) = Filled::kAll;
}

void DecodePath::KeepAll(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                         const MatrixView& q) {
  const Shape& shape = tiers_.shape;
  const auto heads = static_cast<size_t>(shape.layout.kv_heads);
  indices_.resize(2 * sequences.size() * heads);
  moves_.clear();
  int32_t* next = indices_.data();
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    if (!shape.AllFit(sequence.n())) return;
    // All candidates are cached, so the label may be any query: this step's.
    std::memcpy(tiers_.slots.Label(*sequence.slots, list), Query(q, sequence, head),
                shape.label_bytes());
    HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
    SetWindow(shape.RecentBegin(sequence.n()), &slots);
    const int64_t candidates = shape.Candidates(sequence.n());
    if (candidates == shape.Candidates(sequence.past)) return;
    const int64_t position = shape.sink + candidates - 1;
    next[0] = static_cast<int32_t>(shape.FixedSlot(position));
    next[1] = static_cast<int32_t>(AppendSlot(tiers_.geometry, candidates - 1, position, &slots));
    const ops::SlotRows rows = tiers_.geometry.Rows(slots);
    moves_.push_back(
        {.source = rows, .target = rows, .positions = next, .slots = next + 1, .count = 1});
    next += 2;
  });
  ops::MoveRows(stream, moves_);
}

void DecodePath::Decide(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                        const MatrixView& q, float scale, Lookups lookups) {
  const Shape& shape = tiers_.shape;
  const bool verifying = lookups == Lookups::kVerifying;
  const float margin = verifying ? prediction_margin_ : 0;
  lookups_.clear();
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    if (shape.AllFit(sequence.n())) return;
    HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
    // Rows chosen at this step, by its prediction: also if a step that failed is run again.
    const bool predicted = verifying && slots.window_begin == shape.RecentBegin(sequence.n());
    const float tau =
        std::max(tiers_.plan.at(layer, head).tau - margin, predicted ? prediction_tau_ : -1);
    // A rejected query chose the rows when the window began later, so that rows which are outside
    // of the window now may be missing.
    const bool rejected = slots.window_begin > shape.RecentBegin(sequence.n());
    lookups_.push_back({.q = Query(q, sequence, head),
                        .label = tiers_.slots.Label(*sequence.slots, list),
                        .importance = tiers_.plan.importance.data() + layer * shape.layout.q_heads +
                                      head * shape.group,
                        .tau = slots.pending || rejected ? kAlwaysRefresh : tau});
  });
  if (lookups_.empty()) return;
  ops::QsacLookup(stream, shape.group, shape.layout.head_dim, aggregation_, lookups_);

  refreshes_.clear();
  size_t index = 0;
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    const int64_t n = sequence.n();
    if (shape.AllFit(n)) return;
    const ops::LookupWork& lookup = lookups_[index++];
    HeadCounters& counters = Head(layer, head);
    (verifying ? counters.verified : counters.lookups) += 1;
    (verifying ? counters.verified_similarity : counters.similarity) +=
        static_cast<double>(lookup.similarity);
    const HeadAtStep at{shape.Index(layer, head), sequence.past, sequence.row, verifying};
    const bool hit = results_ == nullptr ? lookup.hit : results_->Hit(at, lookup.hit);
    if (verifying) {
      counters.corrected += hit ? 0 : 1;
    } else {
      counters.hits += hit ? 1 : 0;
    }
    HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
    if (hit) return;
    slots.pending = true;
    refreshes_.push_back({.sequence = &sequence,
                          .head = head,
                          .q = lookup.q,
                          .begin = shape.SinkRows(n),
                          .end = shape.RecentBegin(n),
                          .k = shape.Rows(n),
                          .capacity = shape.CacheSlots(n),
                          .verifying = verifying});
  });
  refresher_.Run(stream, layer, scale, results_.get(), refreshes_);
  Traffic& traffic =
      lookups == Lookups::kPredicted ? counters_.stats.prefetch : counters_.stats.miss;
  for (const RefreshWork& item : refreshes_) {
    HeadCounters& counters = Head(layer, item.head);
    counters.rows_selected += item.positions.size();
    counters.rows_moved += static_cast<uint64_t>(item.moved);
    traffic.rows += static_cast<uint64_t>(item.moved);
    traffic.bytes += static_cast<uint64_t>(item.moved) * shape.store_format.row_bytes();
    counters_.stats.bytes_scored += retriever_.BytesScored(item.end - item.begin);
    if (recall_ == nullptr) continue;
    ++counters.recall_refreshes;
    counters.recall_retrieved +=
        recall_->Measure(stream, item.sequence->Rows(shape, layer, item.head), item.q, scale,
                         item.begin, item.end, item.k, item.positions);
  }
}

void DecodePath::Append(int64_t layer, std::span<const SequenceView> sequences, const MatrixView& k,
                        const MatrixView& v) {
  const Shape& shape = tiers_.shape;
  const int64_t d = shape.layout.head_dim;
  const ops::RowFormat f32{ops::RowEncoding::kF32, d};
  row_.resize(static_cast<size_t>(2 * d));
  for (const SequenceView& sequence : sequences) {
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      std::copy_n(k.Row<float>(sequence.row) + head * d, d, row_.data());
      std::copy_n(v.Row<float>(sequence.row) + head * d, d, row_.data() + d);
      const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
      std::byte* target =
          list < 0 ? sequence.Rows(shape, layer, head).Row(sequence.past)
                   : tiers_.geometry.Rows(sequence.slots->heads[static_cast<size_t>(list)])
                         .Row(shape.FixedSlot(sequence.past));
      ops::ConvertRow(f32, reinterpret_cast<const std::byte*>(row_.data()), shape.format, target);
    }
  }
}

void DecodePath::SelectResident(Stream& stream, int64_t layer,
                                std::span<const SequenceView> sequences, const MatrixView& q,
                                float scale) {
  const Shape& shape = tiers_.shape;
  selects_.clear();
  size_t room = 0;
  for (const SequenceView& sequence : sequences) {
    const int64_t n = sequence.n();
    if (whole_ || shape.AllFit(n)) continue;
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      const HeadSettings& settings = tiers_.plan.at(layer, head);
      if (!settings.resident || settings.dense) continue;
      selects_.push_back({.layer = layer,
                          .head = head,
                          .q = Query(q, sequence, head),
                          .scale = scale,
                          .begin = shape.SinkRows(n),
                          .end = shape.RecentBegin(n),
                          .k = shape.Rows(n),
                          .fewest = shape.FewestRows(shape.Rows(n)),
                          .metadata = sequence.Metadata(shape, layer, head),
                          .rows = sequence.Rows(shape, layer, head),
                          .positions = nullptr});
      room += static_cast<size_t>(shape.Rows(n));
    }
  }
  selected_.resize(room);
  int32_t* next = selected_.data();
  for (SelectWork& select : selects_) {
    select.positions = next;
    next += select.k;
  }
  if (!selects_.empty()) retriever_.Select(stream, selects_);
  for (const SelectWork& select : selects_) {
    Head(layer, select.head).rows_selected += static_cast<uint64_t>(select.count);
    counters_.stats.bytes_scored += retriever_.BytesScored(select.end - select.begin);
  }
}

void DecodePath::MeasureHeld(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                             const MatrixView& q, float scale) {
  const Shape& shape = tiers_.shape;
  ForEachOffloaded(layer, sequences, [&](const SequenceView& sequence, int64_t head, int64_t list) {
    const int64_t n = sequence.n();
    if (shape.AllFit(n)) return;
    indices_.clear();
    const HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
    AttendedPositions(tiers_.geometry, slots, &indices_);
    const int64_t k = shape.by_need ? static_cast<int64_t>(indices_.size()) : shape.Rows(n);
    for (int64_t t = shape.WindowBegin(n, slots.window_begin); t < shape.RecentBegin(n); ++t) {
      indices_.push_back(static_cast<int32_t>(t));
    }
    Head(layer, head).recall_held +=
        recall_->Measure(stream, sequence.Rows(shape, layer, head), Query(q, sequence, head), scale,
                         shape.SinkRows(n), shape.RecentBegin(n), k, indices_);
  });
  size_t index = 0;
  for (const SequenceView& sequence : sequences) {
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      if (index == selects_.size()) return;
      const SelectWork& select = selects_[index];
      if (select.head != head || select.q != Query(q, sequence, head)) continue;
      ++index;
      HeadCounters& counters = Head(layer, head);
      ++counters.recall_refreshes;
      counters.recall_retrieved +=
          recall_->Measure(stream, select.rows, select.q, scale, select.begin, select.end,
                           select.fewest > 0 ? select.count : select.k,
                           {select.positions, static_cast<size_t>(select.count)});
    }
  }
}

void DecodePath::Attend(Stream& stream, int64_t layer, std::span<const SequenceView> sequences,
                        const MatrixView& q, const MatrixView& k, const MatrixView& v,
                        const ops::Softmax& softmax, const MatrixView& out) {
  const Shape& shape = tiers_.shape;
  Mark(stream, Section::kManagement);
  Append(layer, sequences, k, v);
  Mark(stream, Section::kRetrieval);
  SelectResident(stream, layer, sequences, q, softmax.scale);
  if (recall_ != nullptr) MeasureHeld(stream, layer, sequences, q, softmax.scale);

  const SectionScope section(stream, Section::kAttention);
  attended_.Clear();
  size_t select = 0;
  for (const SequenceView& sequence : sequences) {
    const int64_t n = sequence.n();
    const int64_t sink = shape.SinkRows(n);
    const int64_t recent = shape.RecentBegin(n);
    for (int64_t head = 0; head < shape.layout.kv_heads; ++head) {
      attended_.Begin(head * shape.group, Query(q, sequence, head),
                      out.Row<float>(sequence.row) + head * shape.group * shape.layout.head_dim);
      const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, head))];
      if (list >= 0) {
        const HeadSlots& slots = sequence.slots->heads[static_cast<size_t>(list)];
        const ops::SlotRows rows = tiers_.geometry.Rows(slots);
        attended_.Add(rows, 0, sink);
        AddAttended(tiers_.geometry, slots, &attended_);
        // The recent ring: from the oldest row to the ring's end, then from its beginning.
        const int64_t begin = shape.WindowBegin(n, slots.window_begin);
        const int64_t first = shape.FixedSlot(begin);
        const int64_t run = std::min(n - begin, shape.CacheBegin() - first);
        attended_.Add(rows, first, run);
        attended_.Add(rows, shape.sink, n - begin - run);
        continue;
      }
      const ops::PagedRows rows = sequence.Rows(shape, layer, head);
      if (tiers_.plan.at(layer, head).dense || whole_ || shape.AllFit(n)) {
        attended_.Add(rows, 0, n);
        continue;
      }
      const SelectWork& chosen = selects_[select++];
      attended_.Add(rows, 0, sink);
      attended_.Add({.rows = rows, .indices = chosen.positions, .begin = 0, .count = chosen.count});
      attended_.Add(rows, recent, n - recent);
    }
  }
  const uint64_t rows = attended_.Attend(stream, shape.format, shape.group, softmax);
  counters_.stats.bytes_read += rows * shape.format.row_bytes();
  counters_.stats.bytes_written +=
      static_cast<uint64_t>(static_cast<int64_t>(sequences.size()) * shape.layout.kv_heads) *
      shape.format.row_bytes();
}

}  // namespace litecache::kv
