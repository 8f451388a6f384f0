#include "ops/recurrence/gated_delta_cuda.h"

#include "ops/gated_delta_testing.h"

namespace litecache::ops {

// The states are one page of several in a table, and the view of several sequences has room for
// more, which must not be read. Rows for bf16 are aligned, as the engine's are.
void GatedDeltaTest::Launch(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                            const std::vector<GatedDeltaSequence>& sequences,
                            const GatedDeltaInputs& in, const MatrixView& out) {
  constexpr int64_t kList = 2;
  std::vector<cuda::StepSequence> all;
  cuda::StepView step;
  for (const GatedDeltaSequence& s : sequences) {
    std::vector<std::byte*> pages(kList, nullptr);
    pages.push_back(reinterpret_cast<std::byte*>(s.state));
    cuda::StepSequence own;
    own.first_row = static_cast<int32_t>(s.first_row);
    own.rows = static_cast<int32_t>(s.rows);
    own.past = static_cast<int32_t>(s.past);
    own.pages[cuda::kSlots] = Upload(pages);
    all.push_back(own);
    step.max_rows = std::max(step.max_rows, own.rows);
    step.max_context = std::max(step.max_context, own.past + own.rows);
  }
  step.count = Upload(std::vector<int32_t>{static_cast<int32_t>(all.size())});
  step.capacity = all.size() == 1 ? 1 : static_cast<int32_t>(all.size()) + 3;
  cuda::StepSequence garbage;
  garbage.rows = garbage.past = 1 << 20;
  all.resize(static_cast<size_t>(step.capacity), garbage);
  step.sequences = Upload(all);
  const int64_t stride = shape.channels() + (out.dtype == DType::kBF16 ? 4 : 3);
  const MatrixView convolved{Poisoned<float>(static_cast<size_t>(out.rows * stride)), DType::kF32,
                             out.rows, shape.channels(), stride};
  cuda::GatedDelta(*stream_, step, cuda::kSlots, kList, shape, weights, in, convolved, out);
}

}  // namespace litecache::ops
