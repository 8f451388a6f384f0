// Divides the memory between weights, buffers and KV, once at start. Sizes in bytes.
#pragma once

#include <cstdint>
#include <string>

#include "kv/cache_plan.h"
#include "litecache/engine.h"

namespace litecache::engine {

struct MemoryRequest {
  std::string model;    // for messages
  uint64_t total = 0;   // budget of both tiers together
  uint64_t device = 0;  // limit for weights, buffers and the device's part of KV; 0: total
  uint64_t host = 0;    // limit for the host store; 0: total
  // The tiers are two memories, a GPU's and the host's: device and host are their budgets, total is
  // the sum, and what one does not use cannot serve the other.
  bool two_memories = false;
  uint64_t weights = 0;  // bytes
  // With two memories: bytes of weights in host memory, outside the store, and their number of
  // layers.
  uint64_t host_weights = 0;
  int64_t offloaded_layers = 0;
  bool weights_mapped = false;     // files are mapped rather than copied
  uint64_t buffers = 0;            // activations, logits, sampling, scratch
  kv::CachePlan* cache = nullptr;  // may lose resident heads to fit
  // Of a draft model; null without.
  const kv::CachePlan* draft_cache = nullptr;
  int64_t draft_context = 0;
  uint64_t draft_weights = 0, draft_buffers = 0;
  std::string policy;
  int64_t model_context = 0;   // the model's own limit
  int64_t wanted_context = 0;  // requested by the user; 0: as much as fits
  int64_t max_batch = 0;
};

// Weights come first, then buffers, then KV with the rest, but no more than max_batch sequences of
// full context can use, split between the tiers in the proportion that a sequence needs, and
// between the model and a draft model in the same way. Throws
// CapacityError with the numbers if weights, or weights and buffers, or the wanted context do not
// fit; InvalidArgument if the wanted context exceeds the model's.
MemoryPlan MakeMemoryPlan(const MemoryRequest& request);

// Throws the CapacityError of MakeMemoryPlan if the weights alone exceed the budget; called before
// they are read. of_gpu: total is a GPU's memory.
void CheckWeightsFit(const std::string& model, uint64_t weights, uint64_t total,
                     bool of_gpu = false);

// The limit of the host store if the user asked for `asked` bytes and `left` bytes of host memory
// are left: the smaller one, with a warning if that is `left`. memory: the budget that the user
// asked for; 0: nine tenths of the free memory.
uint64_t HostCap(uint64_t asked, uint64_t left, uint64_t memory);

}  // namespace litecache::engine
