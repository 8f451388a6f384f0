// The end of ShareGpu() (dense_cuda.h).
#pragma once

#include "device/device.h"

namespace litecache::ops::cuda {

// No other stream's kernels run beside what this stream is given from here on: its products have
// the GPU to themselves until the next ShareGpu().
void UnshareGpu(Stream& stream);

}  // namespace litecache::ops::cuda
