// The room a step needs in both tiers: planned, reserved, taken, and committed when its rows are
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

  // Takes what the step needs. Throws CapacityError, having changed nothing, when a budget would be
  // passed.
  void Begin(const Step& step);
  // The step's tokens belong to their sequences.
  void Commit(const Step& step);

  // Pages of the device pool for one layer's rows while a prompt's chunk attends; until the next
  // Begin() or Commit().
  const std::vector<std::byte*>& staging() const { return staging_pages_; }
  // Whether page i of them and the next are one piece of memory.
  bool StagingGoesOn(size_t i) const {
    return i + 1 < staging_.size() && tiers_.device.Adjoin(staging_[i], staging_[i + 1]);
  }
  // Tokens of a sequence that are stored once the step is committed.
  int64_t StoredAfter(const StepSequence& sequence) const;

 private:
  void Plan(const Step& step);
  void DropStaging();

  Tiers& tiers_;
  std::vector<PageId> staging_;
  std::vector<std::byte*> staging_pages_;
  // Scratch.
  std::vector<SequenceTable::Growth> all_rows_, stored_rows_;
  std::vector<SlotTable::Growth> slot_growth_;
};

}  // namespace litecache::kv
