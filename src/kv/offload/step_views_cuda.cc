#include "kv/offload/step_views_cuda.h"

#include <algorithm>

namespace litecache::kv::offload {
namespace {

// stored: rows before it are not transferred.
ops::cuda::StepSequence Sequence(const Part& part, int64_t stored) {
  return {.first_row = static_cast<int32_t>(part.sequence.first_row),
          .rows = static_cast<int32_t>(part.sequence.rows),
          .past = static_cast<int32_t>(part.sequence.past),
          .stored = static_cast<int32_t>(stored)};
}

}  // namespace

void StepViews::Fill(const StepPlan& plan, const PagesOf& pages_of, const Staging* staging) {
  int64_t decoding = 0, longest = 0;
  for (const Part& part : plan.parts) {
    if (!part.sequence.decode) continue;
    ++decoding;
    longest = std::max(longest, part.n());
  }
  context_ = ContextBucket(longest);
  const auto count = static_cast<int64_t>(plan.parts.size());
  block_.Begin(decoding, count - decoding);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    block_.flag(static_cast<int64_t>(g)) = static_cast<int32_t>(plan.groups[g].decoding());
  }
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = plan.parts[static_cast<size_t>(i)];
    const SequencePages& pages = pages_of.at(part.sequence.id);
    ops::cuda::StepSequence& target = block_.at(i);
    target = Sequence(part, part.split);
    target.pages[ops::cuda::kResident] = pages.resident.device();
    target.pages[ops::cuda::kStore] = pages.store.device();
    if (staging == nullptr) continue;
    const Staging::Lane& lane = staging->lane(part);
    target.pages[kRows] = lane.rows.table.device();
    target.pages[kArrived] = lane.arrived.table.device();
  }
}

void StepViews::FillInputs(const StepPlan& plan, const PagesOf& pages_of) {
  const auto count = static_cast<int64_t>(plan.parts.size());
  inputs_block_.Begin(count, 0);
  inputs_block_.flag(0) = static_cast<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = plan.parts[static_cast<size_t>(i)];
    ops::cuda::StepSequence& target = inputs_block_.at(i);
    target = Sequence(part, part.sequence.past);
    const SequencePages& pages = pages_of.at(part.sequence.id);
    target.pages[kHostInputs] = pages.inputs.device();
    target.pages[kFirstInputs] = pages.first_inputs.device();
  }
}

ops::cuda::StepView StepViews::Inputs() const {
  ops::cuda::StepView view = inputs_block_.Decoding(context_);
  view.count = inputs_block_.device_flags();
  view.capacity = static_cast<int32_t>(inputs_block_.decoding());
  return view;
}

}  // namespace litecache::kv::offload
