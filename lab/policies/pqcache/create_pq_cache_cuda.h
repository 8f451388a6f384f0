// Policy `pqcache` on a GPU, without its parts in sight.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/cache.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/pqcache/shape.h"
#include "litecache/kv_options.h"

namespace litecache::kv::pqcache {

// Device memory that up to `sequences` sequences of up to `tokens` tokens take beside the tiers.
// transfer: the engine.
uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer);

// device: a CudaDevice. forced: null without. Throws Unsupported for options that are the CPU's.
std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const TierBytes& budget, const ForcedSelection* forced);

}  // namespace litecache::kv::pqcache
