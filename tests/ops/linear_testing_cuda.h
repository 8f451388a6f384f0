// Shared by the tests of products: random operands, the sums in double precision, and the errors
// that rounding may cause.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "ops/dense_testing_cuda.h"
#include "ops/linear/gemv_cuda.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_cuda.h"

namespace litecache::ops::cuda {

// One product on both sides: random operands, the double-precision sums and their tolerances.
struct LinearCase {
  Matrix x, weight, y;
  std::vector<float> bias;
  bool add;

  double Want(int64_t t, int64_t o) const {
    double sum = add ? y.At(t, o) : 0;
    if (!bias.empty()) sum += bias[static_cast<size_t>(o)];
    for (int64_t i = 0; i < x.view().cols; ++i) sum += x.At(t, i) * weight.At(o, i);
    return sum;
  }
  // f32 sums of n products in blocks, truncated by tensor cores: sqrt(n) units of the sum of
  // magnitudes, far below one missing product.
  double Tolerance(int64_t t, int64_t o) const {
    double magnitudes = add ? std::abs(y.At(t, o)) : 0;
    if (!bias.empty()) magnitudes += std::abs(bias[static_cast<size_t>(o)]);
    const int64_t n = x.view().cols;
    for (int64_t i = 0; i < n; ++i) magnitudes += std::abs(x.At(t, i) * weight.At(o, i));
    const double rounding = y.view().dtype == DType::kBF16 ? kBf16Rounding : 0;
    // A bias is added to the product's bf16: two roundings.
    const double product = bias.empty() ? 0 : std::abs(Want(t, o) - bias[static_cast<size_t>(o)]);
    return std::ldexp(1.0, -22) * (std::sqrt(static_cast<double>(n)) + 8) * magnitudes +
           2 * rounding * (std::abs(Want(t, o)) + product);
  }
};

class LinearTest : public DenseTest {
 protected:
  LinearCase Make(int64_t rows, int64_t out, int64_t in, DType dtype, DType y_dtype, bool bias,
                  bool add, int64_t padding) {
    LinearCase c{Matrix::Normal(random_, dtype, rows, in, padding),
                 Matrix::Normal(random_, dtype, out, in, padding),
                 Matrix::Normal(random_, y_dtype, rows, out, padding),
                 {},
                 add};
    if (bias) c.bias = RandomVector(out);
    return c;
  }
  LinearPart Target(const LinearCase& c) {
    return {OnDevice(c.weight), c.bias.empty() ? nullptr : Upload(c.bias), OnDevice(c.y)};
  }
  void Compare(const LinearCase& c, const MatrixView& y) {
    ExpectNear(
        y, [&](int64_t t, int64_t o) { return c.Want(t, o); },
        [&](int64_t t, int64_t o) { return c.Tolerance(t, o); });
  }
  void Check(const LinearCase& c) {
    SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, {} -> {}, stride {}, bias {}, add {}",
                             c.x.view().rows, c.weight.view().rows, c.x.view().cols,
                             Name(c.x.view().dtype), Name(c.y.view().dtype), c.x.view().stride,
                             !c.bias.empty(), c.add));
    const LinearPart target = Target(c);
    const MatrixView x = OnDevice(c.x);
    ops::Linear(*stream_, x, target.weight, target.bias, target.y,
                c.add ? Epilogue::kAdd : Epilogue::kStore);
    Compare(c, target.y);
    if (x.dtype == DType::kBF16 && x.rows <= kMaxGemvRows) {
      // The implementation for GPUs before sm_90.
      SCOPED_TRACE("plain GEMV");
      const LinearPart again = Target(c);
      Gemv(*stream_, x, {&again, 1}, c.add ? Epilogue::kAdd : Epilogue::kStore);
      Compare(c, again.y);
    }
  }

  // silu(gate) * up, both products of the same x.
  void CheckGated(int64_t rows, int64_t out, int64_t in, DType y_dtype, bool bias,
                  int64_t padding) {
    SCOPED_TRACE(fmt::format("gated, rows {}, out {}, in {} -> {}, bias {}, padding {}", rows, out,
                             in, Name(y_dtype), bias, padding));
    const LinearCase gate = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    LinearCase up = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < in; ++i) up.x.Set(t, i, static_cast<float>(gate.x.At(t, i)));
    }
    const LinearPart gate_part = Target(gate), up_part = Target(up);
    ops::GatedLinear(*stream_, OnDevice(gate.x), gate_part, up_part);
    const auto want = [&](int64_t t, int64_t o) {
      const double g = gate.Want(t, o);
      return g / (1 + std::exp(-g)) * up.Want(t, o);
    };
    ExpectNear(gate_part.y, want, [&](int64_t t, int64_t o) {
      // silu's slope is at most 1.1, and |silu(g)| <= |g|. Twice bf16's rounding: with many rows,
      // gate and up are rounded before they are multiplied.
      const double g = gate.Want(t, o), u = up.Want(t, o);
      const double gate_error = gate.Tolerance(t, o), up_error = up.Tolerance(t, o);
      const double rounding = y_dtype == DType::kBF16 ? kBf16Rounding : 0;
      return 1.1 * gate_error * (std::abs(u) + up_error) + std::abs(g) * up_error +
             (std::ldexp(8.0, -24) + rounding) * std::abs(want(t, o));
    });
  }
};

}  // namespace litecache::ops::cuda
