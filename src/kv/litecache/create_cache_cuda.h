// Creates policy `litecache` on a GPU, without including its parts.
#pragma once

#include <memory>

#include "kv/cache.h"
#include "kv/heads/head_plan.h"
#include "kv/litecache/result_override.h"
#include "kv/litecache/shape.h"
#include "kv/retrieve/retriever.h"

namespace litecache::kv {

// device: a CudaDevice. results: null without an override.
std::unique_ptr<Cache> CreateCudaLiteCache(Device& device, const Shape& shape, const HeadPlan& plan,
                                           const KvOptions& options,
                                           std::unique_ptr<Retriever> retriever,
                                           const TierBytes& budget, const ResultOverride* results,
                                           const ops::SparsePrefill& sparse);

}  // namespace litecache::kv
