// Selection by hash codes with a softmax over the scores of each query head.
#pragma once

#include "ops/select/select_cuda.h"
#include "ops/slots/litecache_layer_cuda.h"

namespace litecache::ops::cuda {

// HashSelect (ops/select/select_cuda.h) with HashScore::kSoftmax (ops/select/hash_select.h); the
// format must have norms. A key whose code differs from a query's in all of 256 bits may count as
// one that differs in 255.
void HashSoftmaxSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                       const LiteCacheLayer& layer, const HashFormat& format, const float* weights,
                       const SelectQuery& query, void* scratch);

}  // namespace litecache::ops::cuda
