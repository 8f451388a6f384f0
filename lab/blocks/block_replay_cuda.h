// BlockReplay on a GPU.
#pragma once

#include <cstdint>

#include "lab/blocks/block_map.h"
#include "lab/namespaces.h"
#include "ops/attention/kept_blocks_cuda.h"
#include "ops/sparse_prefill/choice_override.h"

namespace litecache::lab::ops::cuda {

// Writes bits, lists and counts of all heads. recorded: in device memory; layer: of the recording.
void ReplayBlocks(Stream& stream, const ChosenChunk& chunk, const RecordedBlocks& recorded,
                  int64_t layer, const DeviceKeptBlocks& chosen);

}  // namespace litecache::lab::ops::cuda
