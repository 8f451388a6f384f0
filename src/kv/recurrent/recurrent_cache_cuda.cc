// The states of recurrent layers on a GPU.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "device/recording_key.h"
#include "device/sections.h"
#include "kv/pages/device_pages_cuda.h"
#include "kv/recurrent/recurrent_drafts.h"
#include "kv/step/step_block_cuda.h"
#include "ops/recurrence/gated_delta_cuda.h"

namespace litecache::kv {
namespace {

class CudaRecurrentCache final : public RecurrentDrafts {
 public:
  CudaRecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                     int64_t draft_tokens)
      : RecurrentDrafts(device, layout, budget_bytes, draft_tokens),
        device_(device),
        block_(device),
        repeated_(device),
        stream_(device.CreateStream()) {}

  void Release(SequenceId id) override {
    RecurrentDrafts::Release(id);
    pages_.erase(id);
  }

  void BeginStep(const Step& step) override {
    RecurrentDrafts::BeginStep(step);
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

  std::optional<uint64_t> ReplayKey(const Step& step) const override {
    // What is kept of drafted tokens lies elsewhere each time.
    const auto kept = [this](const StepSequence& part) { return Keeps(part); };
    if (step.decode_rows != step.rows || std::ranges::any_of(step.sequences, kept)) {
      return std::nullopt;
    }
    return RecordingKey().Add(block_.memory()).value();
  }

  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView& convolved,
             const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    if (layer == 0) block_.Send(stream);
    const SectionScope section(stream, Section::kAttention);
    for (const StepSequence& part : step.sequences) {
      if (Keeps(part)) Keep(stream, layer, part, weights, in);
    }
    const auto recur = [&](const ops::cuda::StepView& view) {
      ops::cuda::GatedDelta(stream, view, ops::cuda::kResident, layer, layout_.delta, weights, in,
                            convolved, out);
    };
    // Operations of a layer do not depend on the context.
    if (block_.decoding() > 0) recur(block_.Decoding(ContextBucket(1)));
    for (int64_t i = 0; i < block_.prefilling(); ++i) recur(block_.Prefilling(i));
  }

 private:
  void Copy(Stream& stream, const MatrixView& from, const MatrixView& to) override {
    constexpr size_t kFloat = sizeof(float);
    const auto pitch = [](const MatrixView& view) {
      return static_cast<size_t>(std::max(view.stride, view.cols)) * kFloat;
    };
    LC_CUDA(cudaMemcpy2DAsync(
        to.data, pitch(to), from.data, pitch(from), static_cast<size_t>(from.cols) * kFloat,
        static_cast<size_t>(from.rows), cudaMemcpyDeviceToDevice, AsCuda(stream).handle()));
  }

  void Repeat(SequenceId id, int64_t layer, int64_t rows, int64_t past,
              const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in,
              const MatrixView& out) override {
    const int64_t channels = layout_.delta.channels();
    if (layer == 0) {
      if (convolved_.data() == nullptr) {
        convolved_ = device_.Allocate(static_cast<size_t>(room_ * channels) * sizeof(float));
      }
      DevicePages& pages = pages_[id];
      pages.Follow(device_, table_, id);
      repeated_.Begin(0, 1);
      ops::cuda::StepSequence& sequence = repeated_.at(0);
      sequence = {.rows = static_cast<int32_t>(rows), .past = static_cast<int32_t>(past)};
      sequence.pages[ops::cuda::kResident] = pages.device();
      repeated_.Send(*stream_);
    }
    ops::cuda::GatedDelta(*stream_, repeated_.Prefilling(0), ops::cuda::kResident, layer,
                          layout_.delta, weights, in,
                          MatrixView::Of(convolved_.as<float>(), rows, channels), out);
  }
  void FinishRepeating() override { stream_->Synchronize(); }

  Device& device_;
  std::unordered_map<SequenceId, DevicePages> pages_;
  StepBlock block_;
  StepBlock repeated_;                    // the sequence of Truncate()
  Buffer convolved_;                      // scratch of Truncate(), f32 [room, channels]
  const std::unique_ptr<Stream> stream_;  // of Truncate()
};

}  // namespace

std::unique_ptr<Cache> CreateCudaRecurrentCache(Device& device, const Layout& layout,
                                                uint64_t budget_bytes, int64_t draft_tokens) {
  return std::make_unique<CudaRecurrentCache>(device, layout, budget_bytes, draft_tokens);
}

}  // namespace litecache::kv
