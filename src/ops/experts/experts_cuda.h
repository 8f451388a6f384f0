// ops/experts/experts.h on a GPU; all pointers are device memory.
#pragma once

#include <cstdint>

#include "ops/experts/experts.h"

namespace litecache::ops::cuda {

void Route(Stream& stream, const MatrixView& logits, const Router& router, const Routing& routing,
           const MatrixView& share, const ExpertRange& own);

uint64_t ExpertScratchBytes(const ExpertLayer& layer, int64_t rows, int64_t active);

void Experts(Stream& stream, const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
             const GateFunction& function, void* scratch, const MatrixView& y);

}  // namespace litecache::ops::cuda
