// The contract of the dense operations has one test body for both devices: ops_test runs the
// contract's tests on the CPU (dense_device_cpu.cc), ops_cuda_test the same sources on a GPU
// (dense_device_cuda.cc).
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/common/gate_function.h"
#include "ops/device_memory.h"
#include "ops/linear/linear.h"
#include "ops/ops_testing.h"

namespace litecache::ops {

// What the devices differ in.
class DenseDevice {
 public:
  virtual ~DenseDevice() = default;
  virtual Device& device() = 0;
  // Calls body once for every set of instructions that operations may run with.
  virtual void ForEachVariant(const std::function<void()>& body) { body(); }
  // The dtypes of activations, f32 first, and of tables.
  virtual std::vector<DType> Activations() const = 0;
  virtual std::vector<DType> Tables() const = 0;
  // The dtype that x has for weights of this one.
  virtual DType InputOf(DType weight) const = 0;
  // How far a product's sum of `terms` terms may be off, whose magnitudes have the sum
  // `magnitudes`.
  virtual double SumError(int64_t terms, double magnitudes, double sum) const = 0;
  // A second implementation of Linear for arguments like these, which this machine's device would
  // not choose: runs it and returns true, or returns false if there is none.
  virtual bool LinearOtherwise(Stream& stream, const MatrixView& x, const LinearPart& part,
                               Epilogue epilogue) {
    return false;
  }
};
// Null, and why, on a machine without the device.
std::unique_ptr<DenseDevice> OpenDenseDevice(std::string* reason);

// Transformers' gelu_pytorch_tanh.
inline double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// What a gate function should compute of two products.
inline double GatedValue(const GateFunction& function, double gate, double up) {
  const double g = std::min<double>(gate, function.limit);
  const double u = std::clamp<double>(up, -function.limit, function.limit) + function.up_added;
  return (function.cubic != 0 ? GeluTanh(g) : g / (1 + std::exp(-function.linear * g))) * u;
}
// How far it may be off, if the products may be by these errors. Gates' slopes are at most 1.13,
// and they are at most |gate|. rounding: relative, of the result.
inline double GatedError(const GateFunction& function, double gate, double gate_error, double up,
                         double up_error, double rounding) {
  // The exponent's rounding errors, in units of 2^-24: relative errors of the exponential.
  const double exponent = function.cubic != 0    ? 188
                          : function.linear != 1 ? 2 * std::abs(function.linear * gate)
                                                 : 0;
  return 1.13 * gate_error * (std::abs(up) + function.up_added + up_error) +
         std::abs(gate) * up_error +
         (std::ldexp(12 + exponent, -24) + rounding) * std::abs(GatedValue(function, gate, up));
}

// Half a unit in the last place, relative; bf16's with a small margin.
inline double Rounding(DType dtype) { return dtype == DType::kBF16 ? 0.0040 : 0; }

class DenseTest : public ::testing::Test, protected DeviceMemory {
 protected:
  void SetUp() override {
    std::string reason;
    target_ = OpenDenseDevice(&reason);
    if (target_ == nullptr) GTEST_SKIP() << reason;
    Use(&target_->device());
  }
  // The device's memory is destroyed before the device.
  void TearDown() override {
    buffers_.clear();
    stream_.reset();
  }

  // Calls body for every set of instructions; what it uploaded is freed after each.
  void ForEachVariant(const std::function<void()>& body) {
    target_->ForEachVariant([&] {
      body();
      stream_->Synchronize();
      buffers_.clear();
    });
  }

  // Copies the matrix with its padding to the device.
  MatrixView OnDevice(const Matrix& m) {
    MatrixView view = m.view();
    const auto* bytes = static_cast<const std::byte*>(view.data);
    const auto size = static_cast<size_t>(view.rows * view.stride) * SizeOf(view.dtype);
    view.data = Upload(std::span(bytes, size));
    return view;
  }
  template <typename T>
  std::span<const T> SpanOnDevice(const std::vector<T>& values) {
    return {Upload(values), values.size()};
  }

  // Compares `got` (device) with want(row, col), each up to tolerance(row, col); its padding must
  // be unchanged: NaN.
  void ExpectNear(const MatrixView& got, const std::function<double(int64_t, int64_t)>& want,
                  const std::function<double(int64_t, int64_t)>& tolerance) {
    stream_->Synchronize();
    Matrix host(got.dtype, got.rows, got.cols, got.stride - got.cols);
    device_->Download(host.view().data, got.data,
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

  std::unique_ptr<DenseDevice> target_;
  Random random_{71};
};

}  // namespace litecache::ops
