// What policy `streaming` has on the CPU and on a GPU alike: a page a sequence, and whole prefixes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "kv/cache.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/pool_stats.h"
#include "kv/step/step_check.h"
#include "kv/streaming/page_table.h"
#include "kv/streaming/shape.h"
#include "kv/truncation.h"
#include "kv/with_shape.h"

namespace litecache::kv::streaming {

class StreamingCacheBase : public WithShape<Cache, Shape>, public LimitedTruncation {
 public:
  std::string_view policy() const final { return "streaming"; }

  void AllocateAhead(const TierBytes& bytes) final { pool_.AllocateAhead(bytes.device); }
  PagePool* device_pages() final { return &pool_; }
  SequenceId Create() final { return table_.Create(); }
  SequenceId Fork(SequenceId parent) final { return table_.Fork(parent); }
  void Release(SequenceId id) override { table_.Release(id); }
  int64_t Length(SequenceId id) const final { return table_.Length(id); }

  bool CanTruncate() const final { return true; }
  int64_t ShortestLength(SequenceId id) const final {
    return std::min(shape_.ShortestLength(table_.Written(id)), Length(id));
  }
  void Truncate(SequenceId id, int64_t tokens) final {
    CheckTruncation(id, Length(id), tokens, ShortestLength(id));
    table_.Truncate(id, tokens);
  }

  bool SharesPrefixes() const final { return true; }
  bool CutsPrefixes() const final { return false; }
  int64_t PrefixLength(SequenceId id) const final { return WholePrefix(Length(id)); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) final {
    LC_CHECK(tokens == PrefixLength(parent), "{} of {} tokens", tokens, Length(parent));
    return Fork(parent);
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const final {
    return {.device = static_cast<uint64_t>(table_.PagesHeld(ids)) * pool_.page_bytes()};
  }

  Stats GetStats() const final {
    Stats stats;
    AddPools(pool_, nullptr, &stats);
    stats.bytes_read = bytes_read_;
    stats.bytes_written = bytes_written_;
    return stats;
  }

 protected:
  StreamingCacheBase(Device& device, const Shape& shape, uint64_t budget_bytes)
      : WithShape(shape),
        pool_(device, shape.page_bytes(), budget_bytes, "KV cache, sink and recent rows"),
        table_(pool_, shape.most_in_place()) {}

  // Gives the step's sequences their pages, as Cache::BeginStep() says.
  void TakePages(const Step& step) {
    check_(step, [this](SequenceId id) { return table_.Length(id); });
    table_.BeginStep(step);
  }

  PagePool pool_;
  PageTable table_;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;

 private:
  StepCheck check_;
};

}  // namespace litecache::kv::streaming
