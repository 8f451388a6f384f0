// Memory that a step needs in both tiers: planned, reserved, taken, and committed once its rows are
// written.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache.h"
#include "kv/litecache/tiers.h"

namespace litecache::kv {

class TierGrowth {
 public:
  explicit TierGrowth(Tiers& tiers) : tiers_(tiers) {}
  ~TierGrowth() { DropStaging(); }
  TierGrowth(const TierGrowth&) = delete;
  TierGrowth& operator=(const TierGrowth&) = delete;

  // Takes the pages that the step needs. Throws CapacityError, with nothing changed, if a budget
  // would be exceeded.
  void Begin(const Step& step);
  // Commits the step's tokens to their sequences.
  void Commit(const Step& step);

  // Pages of the device pool that hold one layer's rows while a prompt chunk attends; valid until
  // the next Begin() or Commit().
  const std::vector<std::byte*>& staging() const { return staging_pages_; }
  // Whether staging pages i and i + 1 are adjacent in memory.
  bool StagingGoesOn(size_t i) const {
    return i + 1 < staging_.size() && tiers_.device.AreAdjacent(staging_[i], staging_[i + 1]);
  }
  // Tokens of the sequence that are in the store once the step is committed.
  int64_t StoredAfter(const StepSequence& sequence) const;

 private:
  void Plan(const Step& step);
  void DropStaging();

  Tiers& tiers_;
  std::vector<PageId> staging_;
  std::vector<std::byte*> staging_pages_;
  // Scratch.
  std::vector<SequenceTable::Growth> all_rows_, stored_rows_, encoded_rows_;
  std::vector<SlotTable::Growth> slot_growth_;
};

}  // namespace litecache::kv
