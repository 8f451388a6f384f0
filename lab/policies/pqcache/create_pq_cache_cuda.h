// Policy `pqcache` on a GPU, without including its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/cache.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/common/namespaces.h"
#include "lab/policies/pqcache/shape.h"
#include "litecache/kv_options.h"

namespace litecache::lab::pqcache {

// Device memory for up to `sequences` sequences of up to `tokens` tokens, besides the tiers.
// transfer: the engine.
uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer);

// device: a CudaDevice. forced: may be null. Throws Unsupported for options that only the CPU
// supports.
std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const TierBytes& budget, const ForcedSelection* forced);

}  // namespace litecache::lab::pqcache
