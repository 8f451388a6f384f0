// ResultOverride on a GPU: kernels that run after a step's lookups and selections.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/step_condition.h"
#include "device/device.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

class CudaResultOverride {
 public:
  // One layer of a decode step.
  struct Place {
    int64_t index = 0;
    const ops::cuda::StepView& step;
    const ops::cuda::LiteCacheShape& shape;
    const ops::cuda::LiteCacheLayer& layer;
    bool verifying = false;   // the actual query, after a lookup with a predicted one
    StepCondition condition;  // to be asked for by what makes a head refresh
  };

  virtual ~CudaResultOverride() = default;
  // Runs after ops::cuda::Lookup; may change refresh, the heads' pending flags and the counters'
  // hits.
  virtual void AfterLookup(Stream& stream, const Place& place) const = 0;

  // Whether selections are replaced, too; otherwise the functions below are not called. They are
  // never called for a sequence's first fill.
  virtual bool replaces_rows() const = 0;
  // Bytes of device memory for BesideSelection and AfterSelection of a layer, which run in this
  // order.
  virtual size_t ScratchBytes(const ops::cuda::LiteCacheShape& shape, int64_t capacity,
                              int64_t max_context) const = 0;
  // Depends on the lookup but not on the selection: may run on another stream at the same time.
  virtual void BesideSelection(Stream& stream, const Place& place, void* scratch) const = 0;
  // Replaces `selected` of offloaded heads whose refresh is 1.
  virtual void AfterSelection(Stream& stream, const Place& place, void* scratch) const = 0;
};

}  // namespace litecache::kv
