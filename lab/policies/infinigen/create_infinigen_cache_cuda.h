// Policy `infinigen` on a GPU, without including its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kv/cache.h"
#include "kv/heads/profile.h"
#include "lab/forced/forced_selection.h"
#include "lab/policies/common/namespaces.h"
#include "lab/policies/infinigen/shape.h"

namespace litecache::lab::infinigen {

// Device memory for up to `sequences` sequences of up to `tokens` tokens, besides the tiers.
// transfer: the engine.
uint64_t CudaScratchBytes(const Shape& shape, int64_t sequences, int64_t tokens,
                          std::string_view transfer);

// device: a CudaDevice. forced: may be null. As Speculation for the profile; throws Unsupported for
// options that only the CPU supports.
std::unique_ptr<Cache> CreateCudaCache(Device& device, const Shape& shape, const KvOptions& options,
                                       const Profile* profile, const TierBytes& budget,
                                       const ForcedSelection* forced);

}  // namespace litecache::lab::infinigen
