// The counters of policy litecache on a GPU: kernels count lookups and rows per head; the host
// counts traffic, which follows from lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kv/cache.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/shape.h"
#include "kv/retrieve/retriever.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::kv {

class CudaCounters {
 public:
  // Keeps references to shape and retriever.
  CudaCounters(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
               const Retriever& retriever);

  // [layers][kv_heads], in device memory, for kernels: of lookups, and of those that check what a
  // predicted query chose.
  ops::cuda::DeviceHeadCounters* lookups() const {
    return mirror_->device<ops::cuda::DeviceHeadCounters>();
  }
  ops::cuda::DeviceHeadCounters* checks() const { return lookups() + heads_.size(); }
  // The step's last operation: copies the kernels' counts to the host.
  void Receive(Stream& stream);

  // CountFill: a sequence's first decode step fills its slots. CountPrompt, CountDecode: at the end
  // of a step; `spilled` rows of the decode sequence have been moved to the store.
  void CountFill(int64_t past);
  void CountPrompt(const StepSequence& part);
  void CountDecode(const StepSequence& part, int64_t spilled);

  // The counts as of the last step that was waited for, without memory figures. prefetched:
  // [layers].
  Stats Get(std::span<const uint8_t> prefetched) const;
  std::span<const HeadCounters> Heads() const;

 private:
  // Adds `rows` for every offloaded head.
  void Add(int64_t rows, Traffic* traffic) const;
  uint64_t heads() const { return heads_.size(); }

  const Shape& shape_;
  const Retriever& retriever_;
  std::unique_ptr<Mirror> mirror_;  // DeviceHeadCounters [2][layers][kv_heads]: lookups, checks
  Stats stats_;
  int64_t resident_selecting_ = 0;  // resident heads that attend a selection
  // Sums over (sequence, step) pairs whose heads look up: their candidates, and their number.
  int64_t lookup_candidates_ = 0, lookup_sequences_ = 0;
  mutable std::vector<HeadCounters> heads_;
  mutable std::vector<HeadCounters> checks_;  // as counted by the kernels
};

}  // namespace litecache::kv
