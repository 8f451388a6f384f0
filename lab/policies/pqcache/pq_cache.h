// The caches of policy `pqcache`, without their parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/cache.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/pqcache/shape.h"
#include "litecache/kv_options.h"

namespace litecache::lab::pqcache {

// Device memory for up to `sequences` sequences of up to `tokens` tokens, besides the tiers.
// transfer: the engine.
uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer);

// forced: the rows to select; may be null.
std::unique_ptr<Cache> CreateCpuCache(Device& device, const Shape& shape, const KvOptions& options,
                                      const TierBytes& budget,
                                      std::shared_ptr<const ForcedSelection> forced);
// device: a CudaDevice. forced: as above. Throws Unsupported for options that only the CPU
// supports.
std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const TierBytes& budget, const ForcedSelection* forced);

}  // namespace litecache::lab::pqcache
