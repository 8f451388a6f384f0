// What kernels are told of policy litecache's layers, in device memory: constants, and the arrays
// and scratch that a step's operations work in.
//
// What several streams touch exists several times: work arrays for each layer ahead and for the one
// that attends. Everything else of a layer has one user at a time: the streams of its decisions
// and of its pull until it attends, then the step's stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/cuda_device.h"
#include "device/recording_key.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"
#include "kv/litecache/tables_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

class CudaLayers {
 public:
  // shape, plan: kept. ahead: layers that decisions are ahead of theirs.
  CudaLayers(CudaDevice& device, const Shape& shape, const HeadPlan& plan, int64_t ahead);

  const ops::cuda::LiteCacheShape& shape() const { return lite_shape_; }
  const ops::cuda::LiteCacheLayer& at(int64_t layer) const {
    return tables_.layers[static_cast<size_t>(layer)];
  }
  std::span<const ops::cuda::LiteCacheLayer> all() const { return tables_.layers; }
  // The layer for a selection of its resident heads alone.
  ops::cuda::LiteCacheLayer Residents(int64_t layer) const;
  // Whether it has resident heads; whether some of them select.
  bool HasResident(int64_t layer) const;
  bool ResidentsSelect(int64_t layer) const;
  // One layer's rows of offloaded heads in staging pages, of which there are two sets.
  ops::cuda::RowTable Staging(int64_t layer, int set) const;

  // counters: [layers][kv_heads].
  void SetCounters(ops::cuda::DeviceHeadCounters* counters);

  // Room for steps of so many sequences that decode at up to `context` tokens. Returns false where
  // there is room already; else what was there is gone, recordings must not use it, and the device
  // must do nothing.
  bool Reserve(int64_t sequences, int64_t context);
  int64_t sequences() const { return sequences_; }
  int64_t context() const { return context_; }
  // Of selections, updates and attention, one after another.
  void* scratch() const { return scratch_.data(); }
  // That a selection and an update need.
  size_t decision_scratch_bytes() const;

  void AddTo(RecordingKey* key) const {
    key->Add(work_).Add(scratch_).Add(sequences_).Add(context_);
  }

 private:
  CudaDevice& device_;
  const Shape& shape_;
  const HeadPlan& plan_;
  const int64_t sets_;  // of work arrays
  ops::cuda::LiteCacheShape lite_shape_;
  LiteCacheTables tables_;
  // refresh, selected, moved: a set for each of sets_ layers by turns.
  Buffer work_;
  int32_t* no_refresh_ = nullptr;  // [pairs] zeros, in work_
  Buffer scratch_;
  int64_t sequences_ = 0, context_ = 0;
};

}  // namespace litecache::kv
