// What the CPU and GPU caches of policy `full` share: pages, forks and counters.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/cache.h"
#include "kv/layout.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "kv/row_store.h"
#include "kv/step/step_check.h"

namespace litecache::kv {

class FullCacheBase : public Cache, public RowStore {
 public:
  std::string_view policy() const override { return "full"; }
  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    return {.device = page_layout_.BytesFor(tokens)};
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return {.device = page_layout_.ForkBytesFor(shared, tokens)};
  }

  void AllocateAhead(const TierBytes& bytes) override { pool_.AllocateAhead(bytes.device); }
  PagePool* device_pages() override { return &pool_; }
  SequenceId Create() override { return table_.Create(); }
  SequenceId Fork(SequenceId parent) override { return table_.Fork(parent); }
  void Release(SequenceId id) override { table_.Release(id); }
  int64_t Length(SequenceId id) const override { return table_.Length(id); }

  bool CanTruncate() const override { return true; }
  void Truncate(SequenceId id, int64_t tokens) override { table_.Truncate(id, tokens); }

  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(SequenceId id) const override { return table_.Length(id); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override {
    return table_.ForkPrefix(parent, tokens);
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override;
  uint64_t BlockBytes() const override { return table_.BytesOf(kBlockTokens, RowUnit()); }
  void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const override;
  void ImportBlock(SequenceId id, std::span<const std::byte> bytes) override;

  void EndStep(const Step& step) override;
  Stats GetStats() const override;

 protected:
  FullCacheBase(Device& device, const Layout& layout, uint64_t budget_bytes);

  // Takes pages for the step's rows. Throws CapacityError, with nothing changed.
  void Grow(const Step& step);

  Layout layout_;
  PageLayout page_layout_;
  PagePool pool_;
  SequenceTable table_;
  // KV rows per head that the current step reads: every row of each of its sequences once.
  int64_t visible_rows_ = 0;

 private:
  TableUnit RowUnit() const { return {1, row_bytes_}; }

  uint64_t row_bytes_;  // of one head's row
  uint64_t bytes_read_ = 0, bytes_written_ = 0;
  // A member so that its memory is reused by every step.
  std::vector<SequenceTable::Growth> growths_;
  StepCheck check_;
};

}  // namespace litecache::kv
