// Recorded blocks in place of those that a prompt's queries chose (block_map.h says which).
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "kv/cache_plan.h"
#include "lab/blocks/block_patterns.h"
#include "lab/namespaces.h"
#include "ops/sparse_prefill/choice_override.h"

namespace litecache::lab {

// For prompts of a model with `layers` layers. Chunks choose their blocks first, then what they
// chose is replaced, but for the last block of queries of a prompt, which keeps all rows.
class BlockReplay final : public ops::ChoiceOverride {
 public:
  BlockReplay(std::shared_ptr<const BlockPatterns> patterns, int64_t layers);

  void OnCpu(const ops::ChosenChunk& chunk, ops::ChosenBlocks* chosen) override;
  void OnGpu(Device& device, Stream& stream, const ops::ChosenChunk& chunk,
             const ops::cuda::DeviceKeptBlocks& chosen) override;

 private:
  std::shared_ptr<const BlockPatterns> patterns_;
  int64_t layers_;
  Buffer on_device_;  // the recorded bits, from the first chunk on
};

// Makes the plan's caches replay them. Returns false if their prompts are not sparse.
bool ReplayBlocks(CachePlan* plan, std::shared_ptr<const BlockPatterns> patterns);

}  // namespace litecache::lab
