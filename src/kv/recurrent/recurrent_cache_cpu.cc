// The states of recurrent layers on the CPU.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/sections.h"
#include "kv/recurrent/recurrent_drafts.h"

namespace litecache::kv {
namespace {

class CpuRecurrentCache final : public RecurrentDrafts {
 public:
  CpuRecurrentCache(Device& device, const Layout& layout, uint64_t budget_bytes,
                    int64_t draft_tokens)
      : RecurrentDrafts(device, layout, budget_bytes, draft_tokens),
        stream_(device.CreateStream()) {}

  void Recur(Stream& stream, int64_t layer, const Step& step, const ops::GatedDeltaWeights& weights,
             const ops::GatedDeltaInputs& in, const MatrixView&, const MatrixView& out) override {
    LC_CHECK(layer >= 0 && layer < layout_.layers);
    const SectionScope section(stream, Section::kAttention);
    views_.clear();
    for (const StepSequence& part : step.sequences) {
      views_.push_back({.first_row = part.first_row,
                        .rows = part.rows,
                        .past = part.past,
                        .state = State(part.id, layer)});
      if (Keeps(part)) Keep(stream, layer, part, weights, in);
    }
    ops::GatedDelta(stream, layout_.delta, weights, views_, in, out);
  }

 private:
  void Copy(Stream& stream, const MatrixView& from, const MatrixView& to) override {
    constexpr int64_t kPiece = 16 << 10;  // floats
    for (int64_t row = 0; row < from.rows; ++row) {
      const auto* source = from.Row<const float>(row);
      auto* target = to.Row<float>(row);
      AsCpu(stream).pool().ParallelFor(
          (from.cols + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end, int) {
            end = std::min(end * kPiece, from.cols);
            begin *= kPiece;
            std::memcpy(target + begin, source + begin,
                        static_cast<size_t>(end - begin) * sizeof(float));
          });
    }
  }

  void Repeat(SequenceId id, int64_t layer, int64_t rows, int64_t past,
              const ops::GatedDeltaWeights& weights, const ops::GatedDeltaInputs& in,
              const MatrixView& out) override {
    const ops::GatedDeltaSequence sequence{
        .first_row = 0, .rows = rows, .past = past, .state = State(id, layer)};
    ops::GatedDelta(*stream_, layout_.delta, weights, {&sequence, 1}, in, out);
  }

  const std::unique_ptr<Stream> stream_;        // of Truncate()
  std::vector<ops::GatedDeltaSequence> views_;  // sequences of the current step
};

}  // namespace

std::unique_ptr<Cache> CreateCpuRecurrentCache(Device& device, const Layout& layout,
                                               uint64_t budget_bytes, int64_t draft_tokens) {
  return std::make_unique<CpuRecurrentCache>(device, layout, budget_bytes, draft_tokens);
}

}  // namespace litecache::kv
