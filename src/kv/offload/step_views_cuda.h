// A step's sequences as its kernels see them: where each one's rows are (in the store, on the
// device and in the buffers), and where its inputs go.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "device/device.h"
#include "kv/cache.h"
#include "kv/offload/groups.h"
#include "kv/offload/staging_cuda.h"
#include "kv/offload/step_plan_cuda.h"
#include "kv/offload/tables_cuda.h"
#include "kv/step/step_block_cuda.h"
#include "ops/step/step_cuda.h"

namespace litecache::kv::offload {

class StepViews {
 public:
  using PagesOf = std::unordered_map<SequenceId, SequencePages>;

  explicit StepViews(Device& device) : block_(device), inputs_block_(device) {}

  // Describes a step that has all its pages. staging: null if nothing is offloaded.
  void Fill(const StepPlan& plan, const PagesOf& pages, const Staging* staging);
  // Describes the same sequences for storing inputs.
  void FillInputs(const StepPlan& plan, const PagesOf& pages);

  // Enqueue the copies to the device.
  void Send(Stream& stream) { block_.Send(stream); }
  void SendByKernel(Stream& stream) { block_.SendByKernel(stream); }
  void SendInputs(Stream& stream) { inputs_block_.SendByKernel(stream); }

  // Calls body(view) for a group's decode sequences, then for each of its prompt chunks. index: the
  // group's.
  template <class Body>
  void ForEach(const Group& group, size_t index, const Body& body) const {
    if (group.decoding() > 0) {
      ops::cuda::StepView view = block_.Decoding(context_);
      view.sequences += group.decode_begin;
      view.count = block_.device_flags() + index;
      view.capacity = static_cast<int32_t>(group.decoding());
      body(view);
    }
    for (int64_t i = group.prefill_begin; i < group.prefill_end; ++i) {
      body(block_.Prefilling(i - block_.decoding()));
    }
  }
  // Calls body(view) for each prompt chunk.
  template <class Body>
  void ForEachPrompt(const Body& body) const {
    for (int64_t i = 0; i < block_.prefilling(); ++i) body(block_.Prefilling(i));
  }
  // All sequences, for storing inputs.
  ops::cuda::StepView Inputs() const;

 private:
  StepBlock block_;         // flags: number of decode sequences in each group
  StepBlock inputs_block_;  // flag: number of sequences
  int64_t context_ = 0;     // context bucket of the longest decode sequence
};

}  // namespace litecache::kv::offload
