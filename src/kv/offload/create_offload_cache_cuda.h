// Whole contexts from the host, as policy `kvpr` has them, on a GPU.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kv/cache.h"
#include "kv/offload/recompute.h"
#include "kv/offload/shape.h"

namespace litecache::kv::offload {

// device: a CudaDevice; shape: made for one.
std::unique_ptr<Cache> CreateCudaOffloadCache(Device& device, std::string policy,
                                              const Shape& shape,
                                              std::optional<Recompute> recompute,
                                              const TierBytes& budget);

}  // namespace litecache::kv::offload
