// Policy `full`: every row stays on the device and is attended.

#include <memory>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "device/sections.h"
#include "kv/cache_plan.h"
#include "kv/full/full_cache_base.h"
#include "kv/full/full_cache_cuda.h"
#include "kv/layout.h"
#include "kv/step/attention_scratch_cuda.h"
#include "kv/step/prefill_options.h"
#include "kv/step/prompt_attention_cpu.h"
#include "ops/attention/attention.h"
#include "ops/common/available_cuda.h"

namespace litecache::kv {
namespace {

class FullCache final : public FullCacheBase {
 public:
  FullCache(Device& device, const Layout& layout, uint64_t budget_bytes,
            const ops::SparsePrefill& sparse)
      : FullCacheBase(device, layout, budget_bytes),
        geometry_(MakeGeometry(layout)),
        attention_(sparse) {}

  void BeginStep(const Step& step) override {
    Grow(step);
    views_.clear();
    for (const StepSequence& sequence : step.sequences) {
      views_.push_back({sequence.first_row, sequence.rows, sequence.past, nullptr, 0});
    }
  }

  void Attend(Stream& stream, int64_t layer, const Step& step, const MatrixView& q,
              const MatrixView& k, const MatrixView& v, const ops::Softmax& softmax,
              const MatrixView& out) override {
    Append(stream, layer, step, k, v);
    const SectionScope section(stream, Section::kAttention);
    attention_.Attend(stream, layer, geometry_, views_, q, layout_.q_heads, softmax, out,
                      [&](size_t i) { return step.sequences[i].ends_prompt; });
  }

  void StoreRows(Stream& stream, int64_t layer, const Step& step, const MatrixView&,
                 const MatrixView& k, const MatrixView& v) override {
    Append(stream, layer, step, k, v);
    visible_rows_ = 0;
  }

  void EndStep(const Step& step) override {
    FullCacheBase::EndStep(step);
    views_.clear();
  }

 private:
  void Append(Stream& stream, int64_t layer, const Step& step, const MatrixView& k,
              const MatrixView& v) {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const SectionScope section(stream, Section::kManagement);
    LC_CHECK(views_.size() == step.sequences.size(), "a layer outside of BeginStep/EndStep");
    for (size_t i = 0; i < views_.size(); ++i) {
      const SequenceId id = step.sequences[i].id;
      views_[i].pages = table_.Lists(id) + layer * layout_.kv_heads;
      views_[i].pages_per_head = table_.Blocks(id);
    }
    ops::AppendKv(stream, geometry_, views_, k, v);
  }

  ops::KvGeometry geometry_;
  PromptAttention attention_;
  std::vector<ops::KvSequence> views_;  // sequences of the current step
};

class FullPlan final : public CachePlan, public SparsePromptPlan {
 public:
  FullPlan(const Layout& layout, DeviceType device, const ops::SparsePrefill& sparse)
      : SparsePromptPlan(sparse), layout_(layout), pages_(layout), device_(device) {}
  const Layout& layout() const override { return layout_; }
  TierBytes BytesFor(int64_t tokens) const override { return {.device = pages_.BytesFor(tokens)}; }
  TierBytes ForkBytesFor(int64_t shared, int64_t tokens) const override {
    return {.device = pages_.ForkBytesFor(shared, tokens)};
  }
  uint64_t ScratchBytes(int64_t sequences, int64_t tokens, int) const override {
    if constexpr (ops::cuda::kAvailable) {
      if (device_ == DeviceType::kCuda) {
        return CudaAttentionScratchBytes(layout_, sequences) +
               CudaPromptScratchBytes(sparse_prefill(), layout_, tokens);
      }
    }
    return ops::AttentionScratchBytes(layout_.kv_heads, layout_.q_heads / layout_.kv_heads,
                                      layout_.head_dim, sequences) +
           PromptScratchBytes(sparse_prefill(), layout_, tokens);
  }
  std::string DeviceHolds() const override {
    return FormatBytes(layout_.token_bytes()) + " a token; taken page by page";
  }
  std::string Identity() const override {
    return "full " + Describe(layout_) + IdentityOf(sparse_prefill());
  }
  std::unique_ptr<Cache> Create(Device& device, const TierBytes& budget) const override {
    return CreateFullCache(device, layout_, budget.device, sparse_prefill());
  }

 private:
  Layout layout_;
  PageLayout pages_;
  DeviceType device_;
};

}  // namespace

std::unique_ptr<CachePlan> PlanFullCache(const Layout& layout, DeviceType device,
                                         const ops::SparsePrefill& sparse) {
  CheckLayout(layout);
  return std::make_unique<FullPlan>(layout, device, sparse);
}

std::unique_ptr<Cache> CreateFullCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                                       const ops::SparsePrefill& sparse) {
  CheckLayout(layout);
  LC_CHECK(layout.uniform(), "windows and states have a plan: kv/mixed");
  if constexpr (ops::cuda::kAvailable) {
    if (device.type() == DeviceType::kCuda) {
      return CreateCudaFullCache(device, layout, budget_bytes, sparse);
    }
  }
  return std::make_unique<FullCache>(device, layout, budget_bytes, sparse);
}

}  // namespace litecache::kv
