// What kernels read about policy litecache's layers, in device memory: constants, and the work
// arrays and scratch of a step's operations.
//
// Memory that several streams use at once exists several times: one set of work arrays for each
// layer ahead and one for the layer that attends. Everything else of a layer has one user at a
// time: the streams of its decisions and of its pull until it attends, then the step's stream.
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
  // Keeps references to shape and plan.
  CudaLayers(CudaDevice& device, const Shape& shape, const HeadPlan& plan);

  const ops::cuda::LiteCacheShape& shape() const { return lite_shape_; }
  const ops::cuda::LiteCacheLayer& at(int64_t layer) const {
    return tables_.layers[static_cast<size_t>(layer)];
  }
  std::span<const ops::cuda::LiteCacheLayer> all() const { return tables_.layers; }
  // The layer with the counters of checks, for the lookup that checks a predicted one.
  ops::cuda::LiteCacheLayer Checked(int64_t layer) const;
  // The layer restricted to its resident heads, for their selection.
  ops::cuda::LiteCacheLayer Residents(int64_t layer) const;
  // Whether the layer has resident heads, and whether any of them attends a selection.
  bool HasResident(int64_t layer) const;
  bool ResidentsSelect(int64_t layer) const { return plan_.ResidentsSelect(layer); }
  // The table of one layer's offloaded heads' rows in staging pages; there are two sets.
  ops::cuda::RowTable Staging(int64_t layer, int set) const;

  // [layers][kv_heads], device memory: counters of lookups, and of those that check others.
  void SetCounters(ops::cuda::DeviceHeadCounters* lookups, ops::cuda::DeviceHeadCounters* checks);

  // Room for steps of `sequences` sequences that decode at up to `context` tokens. Returns false if
  // there is room already. Otherwise the arrays are reallocated: recorded graphs must not use the
  // old ones, and the device must be idle.
  bool Reserve(int64_t sequences, int64_t context);
  int64_t sequences() const { return sequences_; }
  int64_t context() const { return context_; }
  // Shared by selections, updates and attention, which run one after another.
  void* scratch() const { return scratch_.data(); }
  size_t scratch_bytes() const { return scratch_.size(); }
  // Bytes that a selection and an update need.
  size_t decision_scratch_bytes() const;

  void AddTo(RecordingKey* key) const {
    key->Add(work_).Add(scratch_).Add(sequences_).Add(context_);
  }

 private:
  CudaDevice& device_;
  const Shape& shape_;
  const HeadPlan& plan_;
  const int64_t sets_;  // number of sets of work arrays
  ops::cuda::LiteCacheShape lite_shape_;
  LiteCacheTables tables_;
  ops::cuda::DeviceHeadCounters* checks_ = nullptr;
  // refresh, selected, moved: sets_ sets, used by the layers in turn.
  Buffer work_;
  int32_t* no_refresh_ = nullptr;  // [pairs] zeros, in work_
  Buffer scratch_;
  int64_t sequences_ = 0, context_ = 0;
};

}  // namespace litecache::kv
