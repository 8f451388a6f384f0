#include "kv/full/full_cache_cuda.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/full/full_cache_base.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/step/attention_buffer_cuda.h"
#include "kv/step/every_list_cuda.h"
#include "kv/step/prompt_attention_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "ops/attention/attention_cuda.h"
#include "ops/rows/rows_cuda.h"

namespace litecache::kv {
namespace {

class CudaFullCache final : public FullCacheBase {
 public:
  CudaFullCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                const ops::SparsePrefill& sparse)
      : FullCacheBase(device, layout, budget_bytes),
        device_(device),
        format_(ops::FormatOf(layout.dtype, layout.head_dim)),
        block_(device),
        lists_(EveryList(device, layout)),
        scratch_(device),
        prompts_(device, layout, sparse),
        all_heads_(static_cast<size_t>(layout.kv_heads)) {
    std::iota(all_heads_.begin(), all_heads_.end(), 0);
  }

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
    prompts_.BeginStep(step);
  }

  std::optional<uint64_t> ReplayKey(const Step& step) const override {
    RecordingKey key;
    key.Add(block_.memory()).Add(scratch_.memory()).Add(context_);
    if (step.decode_rows == step.rows) return key.value();
    key.Add(step.decode_rows);
    for (int64_t i = 0; i < block_.prefilling(); ++i) {
      const ops::cuda::StepView view = block_.Prefilling(i);
      if (!prompts_.IsContextIndependent(view, format_)) return std::nullopt;
      key.Add(int64_t{view.max_rows});
    }
    return key.value();
  }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    if (layer == 0) block_.Send(stream);
    const ops::cuda::RowTable table = Rows(layer);
    if (block_.decoding() > 0) {
      const ops::cuda::StepView view = block_.Decoding(context_);
      Append(stream, view, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      ops::cuda::PagedAttention(stream, view, layout_.kv_heads, table, q, layout_.q_heads, softmax,
                                out, scratch_.data());
    }
    if (block_.prefilling() > 1) {
      if (const auto all = block_.AllPrefilling(); prompts_.IsContextIndependent(all, format_)) {
        Append(stream, all, table, k, v);
        const SectionScope section(stream, Section::kAttention);
        ops::cuda::PagedAttention(stream, all, layout_.kv_heads, table, q, layout_.q_heads, softmax,
                                  out, scratch_.data());
        return;
      }
    }
    for (int64_t i = 0; i < block_.prefilling(); ++i) {
      const ops::cuda::StepView view = block_.Prefilling(i);
      Append(stream, view, table, k, v);
      const SectionScope section(stream, Section::kAttention);
      prompts_.Attend(stream, layer, i, view, table, all_heads_, q, softmax, out, scratch_.data());
    }
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
  void Append(Stream& stream, const ops::cuda::StepView& view, const ops::cuda::RowTable& table,
              const MatrixView& k, const MatrixView& v) const {
    Mark(stream, Section::kManagement);
    ops::cuda::AppendRows(stream, view, layout_.kv_heads, table, k, v);
  }
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
  CudaPromptAttention prompts_;
  std::vector<int32_t> all_heads_;
  int64_t context_ = 0;  // context bucket of the current step, tokens
};

}  // namespace

std::unique_ptr<Cache> CreateCudaFullCache(Device& device, const Layout& layout,
                                           uint64_t budget_bytes,
                                           const ops::SparsePrefill& sparse) {
  return std::make_unique<CudaFullCache>(device, layout, budget_bytes, sparse);
}

}  // namespace litecache::kv
