// ResultOverride on a GPU. Lookups get thresholds that every similarity, or none, exceeds; slots
// are updated from lists that are made beside the selection. So a step takes as long as one that
// looks up and selects such rows itself.
#pragma once

#include <cstddef>
#include <cstdint>

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
    bool verifying = false;  // the actual query, after a lookup with a predicted one
  };

  virtual ~CudaResultOverride() = default;
  // Makes room for steps of up to `sequences` decode sequences. Call while the device is idle;
  // recorded graphs must not refer to the old memory.
  virtual void Reserve(int64_t sequences) = 0;
  virtual const Buffer& memory() const = 0;

  // One of a step's first operations: sets the thresholds below.
  virtual void BeginStep(Stream& stream, const ops::cuda::StepView& step) const = 0;
  // Device [sequences][KV heads], in place of the layer's.
  virtual const float* Thresholds(int64_t layer, bool verifying) const = 0;

  // Whether selections are replaced, too; otherwise the functions below are not called. They are
  // never called for a sequence's first fill.
  virtual bool replaces_rows() const = 0;
  // Bytes of device memory for Select.
  virtual size_t ScratchBytes(const ops::cuda::LiteCacheShape& shape, int64_t capacity,
                              int64_t max_context) const = 0;
  // Selects for the offloaded heads whose refresh is 1. Depends on the lookup but not on the
  // selection: may run on another stream at the same time.
  struct Lists {
    int32_t* selected = nullptr;        // as LiteCacheLayer's, in scratch
    int32_t* selected_count = nullptr;  // [pairs]
  };
  virtual Lists Select(Stream& stream, const Place& place, void* scratch) const = 0;
};

}  // namespace litecache::kv
