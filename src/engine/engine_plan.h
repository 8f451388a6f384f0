// How an engine will use its memory, decided before any KV memory is taken: KV policy, profile,
// prefill chunk, and the division between weights, buffers and KV.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "litecache/engine.h"
#include "model/decoder.h"
#include "parallel/process_group.h"
#include "tokenizer/tokenizer.h"

namespace litecache::engine {

// What the engine is built from, in the order of creation.
struct Parts {
  Machine machine;
  std::shared_ptr<parallel::ProcessGroup> group;  // with tensor parallelism; else null
  // The same. Outlives the stream: NCCL waits for the end of the graphs that it is part of.
  std::shared_ptr<parallel::Communicator> ranks;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<model::Decoder> draft_decoder;  // null without a draft model
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::filesystem::path directory;
  std::string name;                       // for messages
  std::function<std::string()> identity;  // identifies the model; reads a little of its files
  SamplingParams sampling;
  std::vector<int32_t> eos_ids;
  uint64_t budget = 0;      // of host memory
  uint64_t gpu_budget = 0;  // of a GPU's memory, if there is one
  bool weights_mapped = false;

  uint64_t weights_budget() const { return gpu_budget > 0 ? gpu_budget : budget; }
  // What the model runs on; for a plan, also a GPU that this machine does not have.
  DeviceType device() const { return gpu_budget > 0 ? DeviceType::kCuda : DeviceType::kCpu; }
};

struct Plan {
  KvOptions kv;                                // with the policy that auto came to
  std::shared_ptr<const kv::Profile> profile;  // null without one
  std::unique_ptr<kv::CachePlan> cache;
  std::unique_ptr<kv::CachePlan> draft_cache;  // null without a draft model
  int64_t score_rows = 0;                      // of a step of a score job
  MemoryPlan memory;
  // Where policy full has no room for the whole context: what has, for messages; else empty.
  std::string alternative;
};

// Policy auto: full where the whole context fits (options.max_context, else the model's); else
// litecache, if it reaches further, with a warning that says what that costs; else full.
// Throws CapacityError where weights, buffers and the context do not fit; for policy full it says
// what litecache would take if that fits. Throws also what the policy and its profile throw.
Plan MakePlan(const Parts& parts, const EngineOptions& options);

// The same on all ranks of tensor parallelism: what one of them has no room for, none uses.
Plan PlanTogether(const Parts& parts, const EngineOptions& options);

// How the weights are loaded, without progress.
model::LoadOptions WeightOptions(const EngineOptions& options);

// Throws InvalidArgument where policy litecache would select rows for a layer whose weights come
// too late for that.
void CheckLayersAhead(const EngineOptions& options, const model::ModelConfig& config);

}  // namespace litecache::engine
