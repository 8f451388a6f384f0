// Where the memory goes, decided once at start.
#pragma once

#include <cstdint>
#include <string>

#include "kv/cache_plan.h"
#include "litecache/engine.h"

namespace litecache::engine {

struct MemoryRequest {
  std::string model;    // for messages
  uint64_t total = 0;   // budget of both tiers together, in bytes
  uint64_t device = 0;  // cap of weights, buffers and the device's part of KV; 0: total
  uint64_t host = 0;    // cap of the host store; 0: total
  // The tiers are two memories, a GPU's and the host's: device and host are their budgets, total
  // is their sum, and what one of them leaves is of no use to the other.
  bool two_memories = false;
  uint64_t weights = 0;  // bytes
  // Two memories: bytes in the host's beside the store, of so many layers.
  uint64_t host_weights = 0;
  int64_t offloaded_layers = 0;
  bool weights_mapped = false;     // files mapped into memory rather than copied
  uint64_t buffers = 0;            // activations, logits, sampling, scratch
  kv::CachePlan* cache = nullptr;  // loses resident heads where they do not fit
  std::string policy;
  int64_t model_context = 0;   // the model's own limit
  int64_t wanted_context = 0;  // what the user asked for; 0: as much as fits
  int64_t max_batch = 0;
};

// Weights, then buffers, then KV: what remains, but not more than max_batch sequences of full
// context can use, split between the tiers as a sequence needs them. Throws CapacityError with the
// numbers when weights, or weights and buffers, or the wanted context do not fit; InvalidArgument
// when the wanted context passes the model's.
MemoryPlan MakeMemoryPlan(const MemoryRequest& request);

// Throws the CapacityError of MakeMemoryPlan for weights that alone pass the budget: asked before
// they are read. of_gpu: total is of a GPU's memory.
void CheckWeightsFit(const std::string& model, uint64_t weights, uint64_t total,
                     bool of_gpu = false);

// The cap of the host store where `asked` was asked for and `left` of host memory is left for it:
// the lower one, with a warning where less is left. memory: the budget that was asked for, 0: nine
// tenths of what is free.
uint64_t HostCap(uint64_t asked, uint64_t left, uint64_t memory);

}  // namespace litecache::engine
