#include "kv/recurrent/recurrent_cache.h"

#include "base/error.h"
#include "device/sections.h"
#include "kv/pages/pool_stats.h"
#include "ops/common/available_cuda.h"

namespace litecache::kv {
namespace {

// Above any sequence's length: one page is enough for it.
constexpr int64_t kPageTokens = int64_t{1} << 40;

class CpuRecurrentCache final : public RecurrentCache {
 public:
  CpuRecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes)
      : RecurrentCache(device, layout, budget_bytes) {}

  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView&, const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const SectionScope section(stream, Section::kAttention);
    views_.clear();
    for (const StepSequence& sequence : step.sequences) {
      views_.push_back({.first_row = sequence.first_row,
                        .rows = sequence.rows,
                        .past = sequence.past,
                        .state = reinterpret_cast<float*>(table_.Lists(sequence.id)[layer][0])});
    }
    ops::GatedDelta(stream, layout_.delta, weights, views_, in, out);
  }

 private:
  std::vector<ops::GatedDeltaSequence> views_;
};

class RecurrentPlan final : public CachePlan {
 public:
  RecurrentPlan(const Layout& layout, DeviceType device) : layout_(layout), device_(device) {}

  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    const auto pages = static_cast<uint64_t>(tokens > 0 ? layout_.layers : 0);
    return {.device = pages * RecurrentCache::PageBytes(layout_)};
  }
  TierBytes ForkBytesFor(int64_t, int64_t tokens) const override { return BytesFor(tokens); }
  uint64_t ScratchBytes(int64_t, int64_t, int) const override { return 0; }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {
        return CreateCudaRecurrentCache(device, layout_, budget.device);
      }
    }
    return std::make_unique<CpuRecurrentCache>(device, layout_, budget.device);
  }

 private:
  const Layout layout_;
  const DeviceType device_;
};

}  // namespace

RecurrentCache::RecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes)
    : layout_(layout),
      pool_(device, PageBytes(layout), budget_bytes),
      table_({.lists = layout.layers, .page_tokens = kPageTokens}, pool_) {}

uint64_t RecurrentCache::PageBytes(const Layout& layout) {
  constexpr uint64_t kAlignment = 256;
  const auto bytes = static_cast<uint64_t>(layout.delta.state_floats()) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TierBytes RecurrentCache::BytesFor(int64_t tokens) const {
  const auto pages = static_cast<uint64_t>(tokens > 0 ? layout_.layers : 0);
  return {.device = pages * pool_.page_bytes()};
}

SequenceId RecurrentCache::ForkPrefix(SequenceId parent, int64_t tokens) {
  LC_CHECK(tokens == PrefixLength(parent), "{} of {} tokens", tokens, Length(parent));
  return Fork(parent);
}

void RecurrentCache::BeginStep(const Step& step) {
  check_(step, table_);
  growths_.clear();
  for (const StepSequence& sequence : step.sequences) {
    if (begun_.contains(sequence.id)) {
      throw InvalidArgument(
          "KV cache: sequence {} cannot go on: a step over it has failed and may have changed its "
          "states",
          sequence.id);
    }
    growths_.push_back({sequence.id, sequence.rows});
  }
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
