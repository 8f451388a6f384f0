// The caches of policy `infinigen`, without their parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/cache.h"
#include "kv/heads/profile.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"
#include "lab/policies/infinigen/shape.h"

namespace litecache::lab::infinigen {

// Device memory for up to `sequences` sequences of up to `tokens` tokens, besides the tiers.
// transfer: the engine.
uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer);

// forced: the rows to select; may be null. profile: as for Speculation.
std::unique_ptr<Cache> CreateCpuCache(Device& device, const Shape& shape, const KvOptions& options,
                                      const Profile* profile, const TierBytes& budget,
                                      std::shared_ptr<const ForcedSelection> forced);
// The same for a CudaDevice. Throws Unsupported for options that only the CPU supports.
std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const Profile* profile, const TierBytes& budget,
                                       const ForcedSelection* forced);

}  // namespace litecache::lab::infinigen
