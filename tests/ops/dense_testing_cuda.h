// Shared by the tests of the dense operations: matrices on both sides, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "ops/gpu_testing_cuda.h"
#include "ops/ops_testing.h"

namespace litecache::ops::cuda {

class DenseTest : public GpuTest {
 protected:
  // Copies the matrix with its padding to the device.
  MatrixView OnDevice(const Matrix& m) {
    MatrixView view = m.view();
    const auto* bytes = static_cast<const std::byte*>(view.data);
    const auto size = static_cast<size_t>(view.rows * view.stride) * SizeOf(view.dtype);
    view.data = Upload(std::span(bytes, size));
    return view;
  }

  // Compares `got` (device) with want(row, col), each up to tolerance(row, col); its padding must
  // be unchanged: NaN.
  void ExpectNear(const MatrixView& got, const std::function<double(int64_t, int64_t)>& want,
                  const std::function<double(int64_t, int64_t)>& tolerance) {
    stream_->Synchronize();
    Matrix host(got.dtype, got.rows, got.cols, got.stride - got.cols);
    gpu_->Copy(host.view().data, got.data,
               static_cast<size_t>(got.rows * got.stride) * SizeOf(got.dtype));
    int64_t wrong = 0;
    double error = 0, norm = 0;
    for (int64_t r = 0; r < got.rows; ++r) {
      for (int64_t c = 0; c < got.stride; ++c) {
        const double value = host.At(r, c);
        if (c >= got.cols) {
          if (!std::isnan(value)) ADD_FAILURE() << "padding written at " << r << ", " << c;
          continue;
        }
        const double expected = want(r, c);
        error += (value - expected) * (value - expected);
        norm += expected * expected;
        if (!(std::abs(value - expected) <= tolerance(r, c)) && ++wrong <= 5) {
          ADD_FAILURE() << "[" << r << ", " << c << "]: got " << value << ", want " << expected
                        << ", tolerance " << tolerance(r, c);
        }
      }
    }
    if (wrong > 0) {
      ADD_FAILURE() << wrong << " of " << got.rows * got.cols << " wrong, relative error "
                    << std::sqrt(error / norm);
    }
  }

  std::vector<float> RandomVector(int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = random_.Normal();
    return values;
  }

  Random random_{71};
};

// Half a unit in the last place of bf16, relative, plus a small margin.
inline constexpr double kBf16Rounding = 0.0040;

}  // namespace litecache::ops::cuda
