// The states of recurrent layers: not a policy, but the part of them that kv/mixed needs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kv/cache.h"
#include "kv/cache_plan.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/sequence_table.h"
#include "kv/step/step_check.h"

namespace litecache::kv {

// All layers of `layout` are recurrent: its field `delta` says how. A sequence has a page for each
// layer, whatever its length; a fork shares the pages until one of the two goes on. States are
// updated in place: a sequence whose step has failed between BeginStep and EndStep can only be
// released, and BeginStep throws InvalidArgument for it.
class RecurrentCache : public Cache {
 public:
  static uint64_t PageBytes(const Layout& layout);
  // Bytes of `copies` copies of a sequence's states.
  static TierBytes BytesFor(const Layout& layout, int64_t tokens, int64_t copies);

  std::string_view policy() const override { return "recurrent"; }
  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override { return BytesFor(layout_, tokens, copies_); }
  TierBytes ForkBytesFor(int64_t, int64_t tokens) const override { return BytesFor(tokens); }

  void AllocateAhead(const TierBytes& bytes) override { pool_.AllocateAhead(bytes.device); }
  PagePool* device_pages() override { return &pool_; }
  SequenceId Create() override { return table_.Create(); }
  SequenceId Fork(SequenceId parent) override { return table_.Fork(parent); }
  void Release(SequenceId id) override {
    table_.Release(id);
    begun_.erase(id);
  }
  int64_t Length(SequenceId id) const override { return table_.Length(id); }

  bool SharesPrefixes() const override { return true; }
  bool CutsPrefixes() const override { return false; }
  int64_t PrefixLength(SequenceId id) const override { return WholePrefix(Length(id)); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override;
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override {
    return {.device = static_cast<uint64_t>(table_.PagesHeld(ids)) * pool_.page_bytes()};
  }

  void BeginStep(const Step& step) override { Begin(step, 0); }
  void Attend(Stream&, int64_t, const Step&, const MatrixView&, const MatrixView&,
              const MatrixView&, const ops::Softmax&, const MatrixView&) override;
  void EndStep(const Step& step) override;
  Stats GetStats() const override;

 protected:
  // copies: copies of a sequence's states that are counted.
  RecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes, int64_t copies = 1);

  // BeginStep(), with `more_pages` pages reserved beside those of the step.
  void Begin(const Step& step, int64_t more_pages);
  // Throws InvalidArgument for a sequence whose step has failed.
  void CheckWhole(SequenceId id) const;

  const Layout layout_;
  PagePool pool_;
  SequenceTable table_;

 private:
  const int64_t copies_;
  std::vector<SequenceTable::Growth> growths_;
  StepCheck check_;
  std::unordered_set<SequenceId> begun_;  // steps over them have begun and not ended
  uint64_t bytes_read_ = 0, bytes_written_ = 0;
};

std::unique_ptr<CachePlan> PlanRecurrentCache(const Layout& layout, DeviceType device);
// draft_tokens: the most tokens that a step drafts of a sequence, which can be taken back then
// (recurrent_drafts.h); 0: none.
std::unique_ptr<Cache> CreateCpuRecurrentCache(Device& device, const Layout& layout,
                                               uint64_t budget_bytes, int64_t draft_tokens);
std::unique_ptr<Cache> CreateCudaRecurrentCache(Device& device, const Layout& layout,
                                                uint64_t budget_bytes, int64_t draft_tokens);
// Bytes outside the budget that drafts take for `sequences` sequences.
uint64_t DraftScratchBytes(const Layout& layout, int64_t draft_tokens, int64_t sequences,
                           DeviceType device);

}  // namespace litecache::kv
