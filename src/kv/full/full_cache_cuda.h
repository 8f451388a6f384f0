// Policy `full` on a GPU.
#pragma once

#include <memory>

#include "kv/cache.h"

namespace litecache::kv {

std::unique_ptr<Cache> CreateCudaFullCache(Device& device, const Layout& layout,
                                           uint64_t budget_bytes, const ops::SparsePrefill& sparse);

}  // namespace litecache::kv
