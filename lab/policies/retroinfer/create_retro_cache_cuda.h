// Policy `retroinfer` on a GPU, without its parts in sight.
#pragma once

#include <cstdint>
#include <memory>

#include "kv/cache.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/retroinfer/shape.h"

namespace litecache::kv {

// Device memory that up to `sequences` sequences of up to `tokens` tokens take beside the tiers.
uint64_t CudaRetroScratchBytes(const RetroShape& shape, int64_t sequences, int64_t tokens);

// device: a CudaDevice; shape: of one. forced: null, or which clusters are chosen.
std::unique_ptr<Cache> CreateCudaRetroCache(Device& device, const RetroShape& shape,
                                            const TierBytes& budget, const ForcedSelection* forced);

}  // namespace litecache::kv
