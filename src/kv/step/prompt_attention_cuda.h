// Attention of a prompt chunk on a GPU, which may attend a part of its rows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/cache.h"
#include "ops/attention/attention_cuda.h"
#include "ops/sparse_prefill/sparse_prompts.h"

namespace litecache::kv {

class CudaPromptAttention {
 public:
  CudaPromptAttention(Device& device, const Layout& layout, ops::SparsePrefill sparse)
      : device_(device), layout_(layout), sparse_(std::move(sparse)) {}

  // Makes room for the step's choices.
  void BeginStep(const Step& step);
  // Whether operations and their arguments do not depend on the chunk's context.
  bool IsContextIndependent(const ops::cuda::StepView& view, const ops::RowFormat& format) const {
    return !sparse_.on() &&
           ops::cuda::IsShortChunk(view, layout_.kv_heads, format, layout_.q_heads);
  }
  // As PagedAttention for the step's prompt chunk `chunk`, of which `view` is the view. heads: the
  // KV heads in the table.
  void Attend(Stream& stream, int64_t layer, int64_t chunk, const ops::cuda::StepView& view,
              const ops::cuda::RowTable& table, std::span<const int32_t> heads, const MatrixView& q,
              const ops::Softmax& softmax, const MatrixView& out, void* scratch);

 private:
  Device& device_;
  Layout layout_;
  ops::SparsePrefill sparse_;
  std::vector<bool> ends_;  // by chunk: it ends its prompt
  Buffer memory_;
};

}  // namespace litecache::kv
