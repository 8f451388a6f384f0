// Packed blocks in a GPU's memory.
#pragma once

#include "ops/blocks_testing.h"
#include "ops/linear_testing_cuda.h"

namespace litecache::ops::cuda {

class CudaBlocksTest : public CudaLinearTest {
 protected:
  MatrixView PackedOnDevice(BlockWeights& weights) {
    MatrixView view = weights.view();
    view.data = Upload(weights.Packed());
    return view;
  }

  // A depth near `cols` that is no multiple of 256, if the format has such.
  static int64_t DepthOf(std::string_view format, int64_t cols) {
    return FormatNamed(format).values == 32 ? cols + 96 : cols;
  }
};

}  // namespace litecache::ops::cuda
