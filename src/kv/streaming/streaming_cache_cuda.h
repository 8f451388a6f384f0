// Policy `streaming` on a GPU.
#pragma once

#include <memory>

#include "kv/cache.h"
#include "kv/streaming/shape.h"

namespace litecache::kv {

// device: a CudaDevice.
std::unique_ptr<Cache> CreateCudaStreamingCache(Device& device, const streaming::Shape& shape,
                                                uint64_t budget_bytes);

}  // namespace litecache::kv
