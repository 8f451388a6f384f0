#include "kv/litecache/refresh_cpu.h"

#include <algorithm>
#include <numeric>

#include "device/sections.h"

namespace litecache::kv {

void Refresher::Run(Stream& stream, int64_t layer, float scale, const ResultOverride* results,
                    std::span<RefreshWork> work) {
  if (work.empty()) return;
  const Shape& shape = tiers_.shape;
  size_t room = 0;
  for (const RefreshWork& item : work) {
    room += static_cast<size_t>(std::min(item.k, item.end - item.begin));
  }
  positions_.resize(room);
  moved_positions_.resize(room);
  moved_slots_.resize(room);
  selects_.clear();
  selecting_.clear();
  updates_.clear();
  moves_.clear();

  size_t first = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const RefreshWork& item = work[i];
    const int64_t list = shape.offloaded_list[static_cast<size_t>(shape.Index(layer, item.head))];
    const int64_t count = std::min(item.k, item.end - item.begin);
    updates_.push_back({.slots = &item.sequence->slots->heads[static_cast<size_t>(list)],
                        .positions = positions_.data() + first,
                        .count = count,
                        .capacity = item.capacity,
                        .moved_positions = moved_positions_.data() + first,
                        .moved_slots = moved_slots_.data() + first});
    if (item.end - item.begin > item.k) {
      selecting_.push_back(i);
      selects_.push_back({.layer = layer,
                          .head = item.head,
                          .q = item.q,
                          .scale = scale,
                          .begin = item.begin,
                          .end = item.end,
                          .k = item.k,
                          .fewest = shape.FewestRows(item.k),
                          .metadata = item.sequence->Metadata(shape, layer, item.head),
                          .rows = item.sequence->Rows(shape, layer, item.head),
                          .positions = positions_.data() + first});
    } else {
      std::iota(positions_.begin() + static_cast<int64_t>(first),
                positions_.begin() + static_cast<int64_t>(first) + count,
                static_cast<int32_t>(item.begin));
    }
    first += static_cast<size_t>(count);
  }
  Mark(stream, Section::kRetrieval);
  if (!selects_.empty()) retriever_.Select(stream, selects_);
  for (size_t i = 0; i < selects_.size(); ++i) {
    updates_[selecting_[i]].count = selects_[i].count;
  }
  if (results != nullptr) ReplaceRows(stream, layer, *results, work);
  for (const size_t i : selecting_) work[i].k = updates_[i].count;
  Mark(stream, Section::kManagement);
  UpdateSlots(stream, tiers_.geometry, delta_, updates_);
  for (size_t i = 0; i < work.size(); ++i) {
    const UpdateWork& update = updates_[i];
    work[i].positions = {update.positions, static_cast<size_t>(update.count)};
    work[i].moved = update.moved;
    SetWindow(work[i].end, update.slots);
    if (update.moved == 0) continue;
    moves_.push_back({.source = work[i].sequence->Rows(shape, layer, work[i].head),
                      .target = tiers_.geometry.Rows(*update.slots),
                      .positions = update.moved_positions,
                      .slots = update.moved_slots,
                      .count = update.moved});
  }
  Mark(stream, Section::kTransfer);
  ops::MoveRows(stream, moves_);
  Mark(stream, Section::kManagement);
  for (const UpdateWork& update : updates_) update.slots->pending = false;
}

void Refresher::ReplaceRows(Stream& stream, int64_t layer, const ResultOverride& results,
                            std::span<const RefreshWork> work) {
  Mark(stream, Section::kOverride);
  found_.clear();
  for (size_t i = 0; i < selects_.size(); ++i) {
    const RefreshWork& item = work[selecting_[i]];
    const SequenceView& sequence = *item.sequence;
    found_.push_back(
        {.at = {tiers_.shape.Index(layer, item.head), sequence.past, sequence.row, item.verifying},
         .begin = item.begin,
         .end = item.end,
         .slots = updates_[selecting_[i]].slots,
         .positions = selects_[i].positions,
         .most = item.k,
         .count = selects_[i].count});
  }
  results.ReplaceRows(stream, tiers_.geometry, found_);
  for (size_t i = 0; i < found_.size(); ++i) updates_[selecting_[i]].count = found_[i].count;
}

}  // namespace litecache::kv
