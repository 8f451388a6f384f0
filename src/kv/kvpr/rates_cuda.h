// KVPR's profiler on a GPU.
#pragma once

#include "kv/kvpr/rates.h"

namespace litecache::kv::kvpr {

// MeasureRates on a GPU. device: a CudaDevice; shape: made for one.
Rates MeasureGpuRates(Device& device, const offload::Shape& shape);

}  // namespace litecache::kv::kvpr
