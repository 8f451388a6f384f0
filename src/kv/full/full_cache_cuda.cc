#include "kv/full/full_cache_cuda.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/full/full_cache_base.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/step/attention_buffer_cuda.h"
#include "kv/step/every_list_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {
namespace {

class CudaFullCache final : public FullCacheBase {
 public:
  CudaFullCache(Device& device, const Layout& layout, uint64_t budget_bytes)
      : FullCacheBase(device, layout, budget_bytes),
        device_(device),
        format_(ops::FormatOf(layout.dtype, layout.head_dim)),
        block_(device),
        lists_(EveryList(device, layout)),
        scratch_(device) {}

  void Release(SequenceId id) override {
    FullCacheBase::Release(id);
    pages_.erase(id);
  }

  void BeginStep(const Step& step) override {
    Grow(step);
    const auto count = static_cast<int64_t>(step.sequences.size());
    block_.Begin(step.decode_rows, count - step.decode_rows);
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const StepSequence& sequence = step.sequences[static_cast<size_t>(i)];
      DevicePages& pages = pages_[sequence.id];
      pages.Follow(device_, table_, sequence.id);
      ops::cuda::StepSequence& target = block_.at(i);
      target = {.first_row = static_cast<int32_t>(sequence.first_row),
                .rows = static_cast<int32_t>(sequence.rows),
                .past = static_cast<int32_t>(sequence.past),
                .stored = static_cast<int32_t>(sequence.past)};
      target.pages[ops::cuda::kResident] = pages.device();
      if (i < step.decode_rows) longest = std::max(longest, sequence.past + 1);
    }
    context_ = ContextBucket(longest);
    scratch_.Prepare(step.decode_rows, layout_);
  }

  std::optional<uint64_t> ReplayKey(const Step&) const override {
    return RecordingKey().Add(block_.memory()).Add(scratch_.memory()).Add(context_).value();
  }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    if (layer == 0) block_.Send(stream);
    const ops::cuda::RowTable table = Rows(layer);
    const auto attend = [&](const ops::cuda::StepView& view) {
      Mark(stream, Section::kManagement);
      ops::cuda::AppendRows(stream, view, layout_.kv_heads, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout_.kv_heads, table, q, layout_.q_heads, softmax,
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
    visible_rows_ = 0;
  }

 private:
  ops::cuda::RowTable Rows(int64_t layer) const {
    return {.table = ops::cuda::kResident,
            .lists = static_cast<int32_t>(page_layout_.pages_per_block),
            .page_rows = static_cast<int32_t>(page_layout_.page_tokens),
            .format = format_,
            .list_of_head = lists_.as<int32_t>() + layer * layout_.kv_heads};
  }

  Device& device_;
  ops::RowFormat format_;
  std::unordered_map<SequenceId, DevicePages> pages_;
  StepBlock block_;
  Buffer lists_;  // int32 [layers][kv_heads]: a head's list is its index
  AttentionBuffer scratch_;
  int64_t context_ = 0;  // context bucket of the current step, tokens
};

}  // namespace

std::unique_ptr<Cache> CreateCudaFullCache(Device& device, const Layout& layout,
                                           uint64_t budget_bytes) {
  return std::make_unique<CudaFullCache>(device, layout, budget_bytes);
}

}  // namespace litecache::kv
