// The rows or clusters of a trace's model at every step (lab/forced/forced_selection.h), in device
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "kv/layout.h"
#include "lab/forced/force_rows_cuda.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"

namespace litecache::lab {

template <class T>
class ForcedTable {
 public:
  // values: [steps][layers][kv_heads][of_head].
  ForcedTable(Device& device, const Layout& layout, int64_t steps, int64_t of_head,
              const std::vector<T>& values)
      : steps_(steps), of_head_(of_head), of_layer_(layout.kv_heads * of_head) {
    stride_ = layout.layers * of_layer_;
    LC_CHECK(static_cast<int64_t>(values.size()) == steps * stride_);
    memory_ = device.Allocate(values.size() * sizeof(T));
    device.Upload(memory_.data(), values.data(), memory_.size());
  }

  // [kv_heads][of_head()] of step 0; each further step is stride() later.
  const T* Layer(int64_t layer) const { return memory_.as<const T>() + layer * of_layer_; }
  int64_t steps() const { return steps_; }
  int64_t of_head() const { return of_head_; }
  int64_t stride() const { return stride_; }

 private:
  int64_t steps_, of_head_, of_layer_, stride_ = 0;
  Buffer memory_;
};

// Rows, for ops::cuda::ForceRows.
class ForcedRowTable {
 public:
  ForcedRowTable(Device& device, const Layout& layout, const ForcedSelection& selection)
      : bits_(device, layout, selection.period(), selection.words(), selection.Bits()) {}

  ops::cuda::ForcedRows Layer(int64_t layer) const {
    return {.bits = bits_.Layer(layer),
            .words = static_cast<int32_t>(bits_.of_head()),
            .steps = static_cast<int32_t>(bits_.steps()),
            .stride = bits_.stride()};
  }

 private:
  ForcedTable<uint32_t> bits_;
};

}  // namespace litecache::lab
