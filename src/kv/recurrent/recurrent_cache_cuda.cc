// The states of recurrent layers on a GPU.
#include <unordered_map>

#include "base/error.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/recurrent/recurrent_cache.h"
#include "kv/step/step_block_cuda.h"
#include "ops/recurrence/gated_delta_cuda.h"

namespace litecache::kv {
namespace {

class CudaRecurrentCache final : public RecurrentCache {
 public:
  CudaRecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes)
      : RecurrentCache(device, layout, budget_bytes), device_(device), block_(device) {}

  void Release(SequenceId id) override {
    RecurrentCache::Release(id);
    pages_.erase(id);
  }

  void BeginStep(const Step& step) override {
    RecurrentCache::BeginStep(step);
    const auto count = static_cast<int64_t>(step.sequences.size());
    block_.Begin(step.decode_rows, count - step.decode_rows);
    for (int64_t i = 0; i < count; ++i) {
      const StepSequence& sequence = step.sequences[static_cast<size_t>(i)];
      DevicePages& pages = pages_[sequence.id];
      pages.Follow(device_, table_, sequence.id);
      ops::cuda::StepSequence& target = block_.at(i);
      target = {.first_row = static_cast<int32_t>(sequence.first_row),
                .rows = static_cast<int32_t>(sequence.rows),
                .past = static_cast<int32_t>(sequence.past)};
      target.pages[ops::cuda::kResident] = pages.device();
    }
  }

  std::optional<uint64_t> ReplayKey(const Step&) const override {
    return RecordingKey().Add(block_.memory()).value();
  }

  void Recur(Stream& stream, int64_t layer, const Step&, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView& convolved,
             const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    if (layer == 0) block_.Send(stream);
    const SectionScope section(stream, Section::kAttention);
    const auto recur = [&](const ops::cuda::StepView& view) {
      ops::cuda::GatedDelta(stream, view, ops::cuda::kResident, layer, layout_.delta, weights, in,
                            convolved, out);
    };
    // Operations of a layer do not depend on the context.
    if (block_.decoding() > 0) recur(block_.Decoding(ContextBucket(1)));
    for (int64_t i = 0; i < block_.prefilling(); ++i) recur(block_.Prefilling(i));
  }

 private:
  Device& device_;
  std::unordered_map<SequenceId, DevicePages> pages_;
  StepBlock block_;
};

}  // namespace

std::unique_ptr<Cache> CreateCudaRecurrentCache(Device& device, const Layout& layout,
                                                uint64_t budget_bytes) {
  return std::make_unique<CudaRecurrentCache>(device, layout, budget_bytes);
}

}  // namespace litecache::kv
