// What policy litecache counts on a GPU: lookups and rows that kernels count a head, and traffic
// that follows from lengths, which the host counts.
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
  // shape, retriever: kept.
  CudaCounters(CudaDevice& device, const Shape& shape, const HeadPlan& plan,
               const Retriever& retriever);

  // [layers][kv_heads], for kernels.
  ops::cuda::DeviceHeadCounters* device() const {
    return mirror_->device<ops::cuda::DeviceHeadCounters>();
  }
  // Last in a step: what kernels have counted, to the host.
  void Receive(Stream& stream);

  // A sequence's slots are filled at its first decode step; a step's part is over, after which
  // `spilled` rows of a decode sequence are stored that were not before.
  void CountFill(int64_t past);
  void CountPrompt(const StepSequence& part);
  void CountDecode(const StepSequence& part, int64_t spilled);

  // As of the last step that was waited for, without memory. prefetched: the layers whose rows are
  // brought ahead of time, [layers].
  Stats Get(std::span<const uint8_t> prefetched) const;
  std::span<const HeadCounters> Heads() const;

 private:
  // `rows` of every offloaded head.
  void Add(int64_t rows, Traffic* traffic) const;
  uint64_t heads() const { return heads_.size(); }

  const Shape& shape_;
  const Retriever& retriever_;
  std::unique_ptr<Mirror> mirror_;  // DeviceHeadCounters [layers][kv_heads]
  Stats stats_;
  int64_t resident_selecting_ = 0;  // resident heads that attend a selection
  // Candidates and number of (sequence, step) whose heads look up.
  int64_t lookup_candidates_ = 0, lookup_sequences_ = 0;
  mutable std::vector<HeadCounters> heads_;
};

}  // namespace litecache::kv
