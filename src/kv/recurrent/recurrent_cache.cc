#include "kv/recurrent/recurrent_cache.h"

#include "base/error.h"
#include "kv/pages/pool_stats.h"
#include "ops/common/available_cuda.h"

namespace litecache::kv {
namespace {

// Above any sequence's length: one page is enough for it.
constexpr int64_t kPageTokens = int64_t{1} << 40;

class RecurrentPlan final : public CachePlan {
 public:
  RecurrentPlan(const Layout& layout, DeviceType device) : layout_(layout), device_(device) {}

  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    return RecurrentCache::BytesFor(layout_, tokens, draft_tokens_ > 0 ? 2 : 1);
  }
  TierBytes ForkBytesFor(int64_t, int64_t tokens) const override { return BytesFor(tokens); }
  uint64_t ScratchBytes(int64_t sequences, int64_t, int) const override {
    return DraftScratchBytes(layout_, draft_tokens_, sequences, device_);
  }
  void PlanDrafts(int64_t tokens) override { draft_tokens_ = tokens; }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {
        return CreateCudaRecurrentCache(device, layout_, budget.device, draft_tokens_);
      }
    }
    return CreateCpuRecurrentCache(device, layout_, budget.device, draft_tokens_);
  }

 private:
  const Layout layout_;
  const DeviceType device_;
  int64_t draft_tokens_ = 0;
};

}  // namespace

RecurrentCache::RecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                               int64_t copies)
    : layout_(layout),
      pool_(device, PageBytes(layout), budget_bytes),
      table_({.lists = layout.layers, .page_tokens = kPageTokens}, pool_),
      copies_(copies) {}

uint64_t RecurrentCache::PageBytes(const Layout& layout) {
  constexpr uint64_t kAlignment = 256;
  const auto bytes = static_cast<uint64_t>(layout.delta.state_floats()) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TierBytes RecurrentCache::BytesFor(const Layout& layout, int64_t tokens, int64_t copies) {
  const auto pages = static_cast<uint64_t>(tokens > 0 ? copies * layout.layers : 0);
  return {.device = pages * PageBytes(layout)};
}

SequenceId RecurrentCache::ForkPrefix(SequenceId parent, int64_t tokens) {
  LC_CHECK(tokens == PrefixLength(parent), "{} of {} tokens", tokens, Length(parent));
  return Fork(parent);
}

void RecurrentCache::CheckWhole(SequenceId id) const {
  if (!begun_.contains(id)) return;
  throw InvalidArgument(
      "KV cache: sequence {} cannot go on: a step over it has failed and may have changed its "
      "states",
      id);
}

void RecurrentCache::Begin(const Step& step, int64_t more_pages) {
  check_(step, table_);
  growths_.clear();
  for (const StepSequence& sequence : step.sequences) {
    CheckWhole(sequence.id);
    growths_.push_back({sequence.id, sequence.rows});
  }
  if (more_pages > 0) pool_.Reserve(table_.PagesNeeded(growths_) + more_pages);
  table_.Grow(growths_);
  for (const StepSequence& sequence : step.sequences) begun_.insert(sequence.id);
}

void RecurrentCache::Attend(Stream&, int64_t layer, const Step&, const MatrixView&,
                            const MatrixView&, const MatrixView&, const ops::Softmax&,
                            const MatrixView&) {
  LC_CHECK(false, "layer {} attends nothing", layer);
}

void RecurrentCache::EndStep(const Step& step) {
  for (const StepSequence& sequence : step.sequences) {
    table_.Commit(sequence.id, sequence.rows);
    begun_.erase(sequence.id);
    const auto bytes =
        static_cast<uint64_t>(layout_.layers * layout_.delta.state_floats()) * sizeof(float);
    bytes_read_ += sequence.past > 0 ? bytes : 0;
    bytes_written_ += bytes;
  }
}

Stats RecurrentCache::GetStats() const {
  Stats stats;
  AddPools(pool_, nullptr, &stats);
  stats.bytes_read = bytes_read_;
  stats.bytes_written = bytes_written_;
  return stats;
}

std::unique_ptr<CachePlan> PlanRecurrentCache(const Layout& layout, DeviceType device) {
  return std::make_unique<RecurrentPlan>(layout, device);
}

}  // namespace litecache::kv
