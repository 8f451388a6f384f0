// Policy `full`: every row stays on the device and is attended.

#include "kv/cuda/full_cache.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "device/sections.h"
#include "kv/cache.h"
#include "kv/cache_plan.h"
#include "kv/cuda/attention_scratch.h"
#include "kv/layout.h"
#include "kv/page_pool.h"
#include "kv/pool_stats.h"
#include "kv/row_store.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "ops/attention.h"
#include "ops/cuda/available.h"

namespace litecache::kv {
namespace {

class FullCache final : public Cache, public RowStore {
 public:
  FullCache(Device& device, const Layout& layout, uint64_t budget_bytes)
      : layout_(layout),
        page_layout_(layout),
        geometry_(MakeGeometry(layout)),
        pool_(device, page_layout_.page_bytes, budget_bytes),
        table_(page_layout_.Table(), pool_) {}

  std::string_view policy() const override { return "full"; }
  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override {
    return {.device = page_layout_.BytesFor(tokens)};
  }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return {.device = page_layout_.ForkBytesFor(shared, tokens)};
  }

  SequenceId Create() override { return table_.Create(); }
  SequenceId Fork(SequenceId parent) override { return table_.Fork(parent); }
  void Release(SequenceId id) override { table_.Release(id); }
  int64_t Length(SequenceId id) const override { return table_.Length(id); }

  bool SharesPrefixes() const override { return true; }
  int64_t PrefixLength(SequenceId id) const override { return table_.Length(id); }
  SequenceId ForkPrefix(SequenceId parent, int64_t tokens) override {
    return table_.ForkPrefix(parent, tokens);
  }
  TierBytes BytesHeld(std::span<const SequenceId> ids) const override {
    return {.device = static_cast<uint64_t>(table_.PagesHeld(ids)) * pool_.page_bytes()};
  }
  uint64_t BlockBytes() const override { return table_.BytesOf(kBlockTokens, RowUnit()); }
  void ExportBlock(SequenceId id, int64_t begin, std::span<std::byte> out) const override {
    LC_CHECK(out.size() == BlockBytes() && begin + kBlockTokens <= table_.Length(id));
    table_.Export(id, begin, kBlockTokens, RowUnit(), out.data());
  }
  void ImportBlock(SequenceId id, std::span<const std::byte> bytes) override {
    LC_CHECK(bytes.size() == BlockBytes());
    const int64_t begin = table_.Length(id);
    table_.Grow(std::vector<SequenceTable::Growth>{{id, kBlockTokens}});
    table_.Import(id, begin, kBlockTokens, RowUnit(), bytes.data());
    table_.Commit(id, kBlockTokens);
  }

  void BeginStep(const Step& step) override {
    check_(step, table_);
    growths_.clear();
    for (const StepSequence& sequence : step.sequences) {
      growths_.push_back({sequence.id, sequence.rows});
    }
    table_.Grow(growths_);
    views_.clear();
    visible_rows_ = 0;
    for (const StepSequence& sequence : step.sequences) {
      views_.push_back({sequence.first_row, sequence.rows, sequence.past, nullptr, 0});
      visible_rows_ += sequence.past + sequence.rows;
    }
  }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override {
    StoreRows(stream, layer, step, q, k, v);
    const SectionScope section(stream, Section::kAttention);
    ops::Attention(stream, geometry_, views_, q, layout_.q_heads, scale, out);
    const uint64_t head_rows = static_cast<uint64_t>(layout_.kv_heads) * geometry_.row_bytes();
    bytes_read_ += static_cast<uint64_t>(visible_rows_) * head_rows;
  }

  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                 const MatrixView& k, const MatrixView& v) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const SectionScope section(stream, Section::kManagement);
    LC_CHECK(views_.size() == step.sequences.size(), "a layer outside of BeginStep/EndStep");
    for (size_t i = 0; i < views_.size(); ++i) {
      const SequenceId id = step.sequences[i].id;
      views_[i].pages = table_.Lists(id) + layer * layout_.kv_heads;
      views_[i].pages_per_head = table_.Blocks(id);
    }
    ops::AppendKv(stream, geometry_, views_, k, v);
    bytes_written_ += static_cast<uint64_t>(step.rows * layout_.kv_heads) * geometry_.row_bytes();
  }

  void EndStep(const Step& step) override {
    for (const StepSequence& sequence : step.sequences) table_.Commit(sequence.id, sequence.rows);
    views_.clear();
  }

  Stats GetStats() const override {
    Stats stats;
    AddPools(pool_, nullptr, &stats);
    stats.bytes_read = bytes_read_;
    stats.bytes_written = bytes_written_;
    return stats;
  }

 private:
  TableUnit RowUnit() const { return {1, geometry_.row_bytes()}; }

  Layout layout_;
  PageLayout page_layout_;
  ops::KvGeometry geometry_;
  PagePool pool_;
  SequenceTable table_;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;
  // Of the step in progress; kept so that a step allocates nothing once they have grown.
  std::vector<SequenceTable::Growth> growths_;
  std::vector<ops::KvSequence> views_;
  StepCheck check_;
  int64_t visible_rows_ = 0;  // KV rows a head the step's sequences see, each read once
};

class FullPlan final : public CachePlan {
 public:
  FullPlan(const Layout& layout, DeviceType device)
      : layout_(layout), pages_(layout), device_(device) {}
  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override { return {.device = pages_.BytesFor(tokens)}; }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return {.device = pages_.ForkBytesFor(shared, tokens)};
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t, int) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) return CudaAttentionScratchBytes(layout_, sequences);
    }
    return ops::AttentionScratchBytes(layout_.kv_heads, layout_.q_heads / layout_.kv_heads,
                                      layout_.head_dim, sequences);
  }
  std::string DeviceHolds() const override {
    return FormatBytes(layout_.token_bytes()) + " a token; taken page by page";
  }
  std::string Identity() const override { return "full " + Describe(layout_); }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    return CreateFullCache(device, layout_, budget.device);
  }

 private:
  Layout layout_;
  PageLayout pages_;
  DeviceType device_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanFullCache(const Layout& layout, DeviceType device) {
  CheckLayout(layout);
  return std::make_unique<FullPlan>(layout, device);
}

std::unique_ptr<Cache> CreateFullCache(Device& device, const Layout& layout,
                                       uint64_t budget_bytes) {
  CheckLayout(layout);
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      return CreateCudaFullCache(device, layout, budget_bytes);
    }
  }
  return std::make_unique<FullCache>(device, layout, budget_bytes);
}

}  // namespace litecache::kv
