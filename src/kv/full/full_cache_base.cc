#include "kv/full/full_cache_base.h"

#include "base/error.h"
#include "kv/pages/pool_stats.h"

namespace litecache::kv {

FullCacheBase::FullCacheBase(Device& device, const Layout& layout, uint64_t budget_bytes)
    : layout_(layout),
      page_layout_(layout),
      pool_(device, page_layout_.page_bytes, budget_bytes),
      table_(page_layout_.Table(), pool_),
      row_bytes_(page_layout_.Table().token_bytes) {}

TierBytes FullCacheBase::BytesHeld(std::span<const SequenceId> ids) const {
  return {.device = static_cast<uint64_t>(table_.PagesHeld(ids)) * pool_.page_bytes()};
}

void FullCacheBase::ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const {
  LC_CHECK(out.size() == BlockBytes() && begin + kBlockTokens <= table_.Length(id));
  table_.Export(id, begin, kBlockTokens, RowUnit(), out.data());
}

void FullCacheBase::ImportBlock(SequenceId id, std::span<const std::byte> bytes) {
  LC_CHECK(bytes.size() == BlockBytes());
  const int64_t begin = table_.Length(id);
  table_.Grow(std::vector<SequenceTable::Growth>{{id, kBlockTokens}});
  table_.Import(id, begin, kBlockTokens, RowUnit(), bytes.data());
  table_.Commit(id, kBlockTokens);
}

void FullCacheBase::Grow(const Step& step) {
  check_(step, table_);
  growths_.clear();
  for (const StepSequence& sequence : step.sequences) {
    growths_.push_back({sequence.id, sequence.rows});
  }
  table_.Grow(growths_);
  visible_rows_ = 0;
  for (const StepSequence& sequence : step.sequences) {
    visible_rows_ += sequence.past + sequence.rows;
  }
}

void FullCacheBase::EndStep(const Step& step) {
  for (const StepSequence& sequence : step.sequences) table_.Commit(sequence.id, sequence.rows);
  // Counted here, not where operations are issued, because a replayed step issues none.
  const uint64_t row = static_cast<uint64_t>(layout_.kv_heads * layout_.layers) * row_bytes_;
  bytes_read_ += static_cast<uint64_t>(visible_rows_) * row;
  bytes_written_ += static_cast<uint64_t>(step.rows) * row;
}

Stats FullCacheBase::GetStats() const {
  Stats stats;
  AddPools(pool_, nullptr, &stats);
  stats.bytes_read = bytes_read_;
  stats.bytes_written = bytes_written_;
  return stats;
}

}  // namespace litecache::kv
