// Found before CUTLASS's own header of this name, which brings the matrix products of all GPUs that
// there are: FlashInfer's kernel takes two layouts from it. 0.4 GB and a third of the compile time.
#pragma once

#include "cutlass/arch/memory_sm80.h"
#include "cutlass/gemm/collective/builders/sm90_common.inl"
