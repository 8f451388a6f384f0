#include "kv/litecache/growth.h"

#include <algorithm>

namespace litecache::kv {

int64_t TierGrowth::StoredAfter(const StepSequence& sequence) const {
  const int64_t n = sequence.past + sequence.rows;
  return std::max(sequence.decode ? n - tiers_.shape.recent : n, tiers_.store.Length(sequence.id));
}

void TierGrowth::Plan(const Step& step) {
  all_rows_.clear();
  stored_rows_.clear();
  encoded_rows_.clear();
  slot_growth_.clear();
  for (const StepSequence& sequence : step.sequences) {
    all_rows_.push_back({sequence.id, sequence.rows});
    const int64_t after = StoredAfter(sequence);
    const int64_t stored = after - tiers_.store.Length(sequence.id);
    if (stored > 0) stored_rows_.push_back({sequence.id, stored});
    const int64_t encoded = after - tiers_.metadata.Length(sequence.id);
    if (encoded > 0) encoded_rows_.push_back({sequence.id, encoded});
    slot_growth_.push_back(
        {sequence.id, sequence.decode ? tiers_.shape.SlotPages(sequence.past + 1) : 0});
  }
}

void TierGrowth::DropStaging() {
  for (PageId page : staging_) tiers_.device.DropReference(page);
  staging_.clear();
  staging_pages_.clear();
}

void TierGrowth::Begin(const Step& step) {
  DropStaging();
  Plan(step);
  int64_t staging = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.decode) continue;
    staging = std::max(staging, tiers_.shape.StagingPages(sequence.past + sequence.rows));
  }
  // All calls that can throw come first.
  tiers_.host.Reserve(tiers_.store.PagesNeeded(stored_rows_));
  tiers_.device.Reserve(
      tiers_.resident.PagesNeeded(all_rows_) + tiers_.metadata.PagesNeeded(encoded_rows_) +
      tiers_.scales.PagesNeeded(stored_rows_) + tiers_.slots.PagesNeeded(slot_growth_) + staging);
  tiers_.store.Grow(stored_rows_);
  tiers_.resident.Grow(all_rows_);
  tiers_.metadata.Grow(encoded_rows_);
  tiers_.scales.Grow(stored_rows_);
  tiers_.slots.Grow(slot_growth_);
  for (; staging > 0; --staging) staging_.push_back(tiers_.device.Take());
  // Sorted by address, so that copies can span neighbouring pages.
  std::ranges::sort(staging_);
  for (const PageId page : staging_) staging_pages_.push_back(tiers_.device.data(page));
}

void TierGrowth::Commit(const Step& step) {
  Plan(step);
  for (const auto& growth : all_rows_) tiers_.resident.Commit(growth.id, growth.rows);
  for (const auto& growth : stored_rows_) {
    tiers_.store.Commit(growth.id, growth.rows);
    tiers_.scales.Commit(growth.id, growth.rows);
  }
  for (const auto& growth : encoded_rows_) tiers_.metadata.Commit(growth.id, growth.rows);
  DropStaging();
}

}  // namespace litecache::kv
