// Sees which blocks of rows prompts' chunks keep, and may replace them: to record a model's choice,
// or to measure with a recorded one. The choice is made in any case; without an override, prompts
// pay nothing.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/attention/kept_blocks_cuda.h"
#include "ops/sparse_prefill/sparse_prefill.h"

namespace litecache::ops {

// A chunk of one sequence at one layer.
struct ChosenChunk {
  int64_t layer = 0;
  int64_t past = 0, rows = 0;  // tokens before it, its own
  int64_t q_heads = 0;
  bool whole_end = false;  // as ChooseBlocks(): leave the last block of queries as it is
};

class ChoiceOverride {
 public:
  virtual ~ChoiceOverride() = default;
  // What is written must be as KeptBlocks says.
  virtual void OnCpu(const ChosenChunk& chunk, ChosenBlocks* chosen) = 0;
  // Bits, lists and counts are in the GPU's memory. Heads that are not in the chunk's table have
  // room in them, too, and arbitrary values.
  virtual void OnGpu(Device& device, Stream& stream, const ChosenChunk& chunk,
                     const cuda::DeviceKeptBlocks& chosen) = 0;
};

}  // namespace litecache::ops
