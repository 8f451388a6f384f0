#include "kv/cuda/full_cache.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/cuda/attention_buffer.h"
#include "kv/cuda/device_pages.h"
#include "kv/cuda/every_list.h"
#include "kv/cuda/step_block.h"
#include "kv/layout.h"
#include "kv/page_pool.h"
#include "kv/pool_stats.h"
#include "kv/row_store.h"
#include "kv/sequence_table.h"
#include "kv/step_check.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/rows.h"

namespace litecache::kv {
namespace {

class CudaFullCache final : public Cache, public RowStore {
 public:
  CudaFullCache(Device& device, const Layout& layout, uint64_t budget_bytes)
      : device_(device),
        layout_(layout),
        page_layout_(layout),
        format_(ops::FormatOf(layout.dtype, layout.head_dim)),
        pool_(device, page_layout_.page_bytes, budget_bytes),
        table_(page_layout_.Table(), pool_),
        block_(device),
        lists_(EveryList(device, layout)),
        scratch_(device) {}

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
  void Release(SequenceId id) override {
    table_.Release(id);
    pages_.erase(id);
  }
  int64_t Length(SequenceId id) const override { return table_.Length(id); }

  void BeginStep(const Step& step) override {
    check_(step, table_);
    growths_.clear();
    for (const StepSequence& sequence : step.sequences) {
      growths_.push_back({sequence.id, sequence.rows});
    }
    table_.Grow(growths_);
    const auto count = static_cast<int64_t>(step.sequences.size());
    block_.Begin(step.decode_rows, count - step.decode_rows);
    visible_rows_ = 0;
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const StepSequence& sequence = step.sequences[static_cast<size_t>(i)];
      DevicePages& pages = pages_[sequence.id];
      std::byte* const* const* lists = table_.Lists(sequence.id);
      pages.Update(device_, page_layout_.pages_per_block, table_.Blocks(sequence.id),
                   sequence.past / page_layout_.page_tokens,
                   [&](int64_t list, int64_t b) { return lists[list][b]; });
      ops::cuda::StepSequence& target = block_.at(i);
      target = {.first_row = static_cast<int32_t>(sequence.first_row),
                .rows = static_cast<int32_t>(sequence.rows),
                .past = static_cast<int32_t>(sequence.past),
                .stored = static_cast<int32_t>(sequence.past)};
      target.pages[ops::cuda::kResident] = pages.device();
      visible_rows_ += sequence.past + sequence.rows;
      if (i < step.decode_rows) longest = std::max(longest, sequence.past + 1);
    }
    context_ = ContextBucket(longest);
    scratch_.Prepare(step.decode_rows, layout_);
  }

  std::optional<uint64_t> ReplayKey(const Step&) const override {
    return RecordingKey().Add(block_.memory()).Add(scratch_.memory()).Add(context_).value();
  }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, float scale,
              const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    if (layer == 0) block_.Send(stream);
    const ops::cuda::RowTable table = Rows(layer);
    const auto attend = [&](const ops::cuda::StepView& view) {
      Mark(stream, Section::kManagement);
      ops::cuda::AppendRows(stream, view, layout_.kv_heads, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout_.kv_heads, table, q, layout_.q_heads, scale,
                                out, scratch_.data());
    };
    if (block_.decoding() > 0) attend(block_.Decoding(context_));
    for (int64_t i = 0; i < block_.prefilling(); ++i) attend(block_.Prefilling(i));
  }

  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                 const MatrixView& k, const MatrixView& v) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers && step.decode_rows == 0);
    if (layer == 0) block_.Send(stream);
    for (int64_t i = 0; i < block_.prefilling(); ++i) {
      ops::cuda::AppendRows(stream, block_.Prefilling(i), layout_.kv_heads, Rows(layer), k, v);
    }
  }

  void EndStep(const Step& step) override {
    for (const StepSequence& sequence : step.sequences) table_.Commit(sequence.id, sequence.rows);
    // Counted here and not where they are issued: a replayed step issues nothing.
    const uint64_t row =
        static_cast<uint64_t>(layout_.kv_heads * layout_.layers) * format_.row_bytes();
    bytes_read_ += static_cast<uint64_t>(visible_rows_) * row;
    bytes_written_ += static_cast<uint64_t>(step.rows) * row;
  }

  Stats GetStats() const override {
    Stats stats;
    AddPools(pool_, nullptr, &stats);
    stats.bytes_read = bytes_read_;
    stats.bytes_written = bytes_written_;
    return stats;
  }

 private:
  TableUnit RowUnit() const { return {1, format_.row_bytes()}; }
  ops::cuda::RowTable Rows(int64_t layer) const {
    return {.table = ops::cuda::kResident,
            .lists = static_cast<int32_t>(page_layout_.pages_per_block),
            .page_rows = static_cast<int32_t>(page_layout_.page_tokens),
            .format = format_,
            .list_of_head = lists_.as<int32_t>() + layer * layout_.kv_heads};
  }

  Device& device_;
  Layout layout_;
  PageLayout page_layout_;
  ops::RowFormat format_;
  PagePool pool_;
  SequenceTable table_;
  std::unordered_map<SequenceId, DevicePages> pages_;
  StepBlock block_;
  Buffer lists_;  // int32 [layers][kv_heads]: a head's list is its index
  AttentionBuffer scratch_;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;
  // Of the step in progress.
  std::vector<SequenceTable::Growth> growths_;
  StepCheck check_;
  int64_t visible_rows_ = 0;
  int64_t context_ = 0;
};

}  // namespace

std::unique_ptr<Cache> CreateCudaFullCache(Device& device, const Layout& layout,
                                           uint64_t budget_bytes) {
  return std::make_unique<CudaFullCache>(device, layout, budget_bytes);
}

}  // namespace litecache::kv
