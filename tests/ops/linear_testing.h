// Shared by the tests of products: random operands, the sums in double precision, and the errors
// that rounding may cause.
#pragma once

#include <vector>

#include "ops/dense_testing.h"

namespace litecache::ops {

// The operands of one product.
struct LinearCase {
  Matrix x, weight, y;
  std::vector<float> bias;
  bool add;
  std::vector<double> sums, tolerances;  // [rows, out], of Refer()

  double Want(int64_t t, int64_t o) const { return sums[Index(t, o)]; }
  double Tolerance(int64_t t, int64_t o) const { return tolerances[Index(t, o)]; }
  // The product's part of Want: without the bias.
  double Product(int64_t t, int64_t o) const {
    return Want(t, o) - (bias.empty() ? 0 : bias[static_cast<size_t>(o)]);
  }

  // Computes the sums and how far `device` may be off. Call again after x, y or the bias changed.
  void Refer(const DenseDevice& device) {
    sums.clear();
    tolerances.clear();
    const int64_t n = x.view().cols;
    for (int64_t t = 0; t < y.view().rows; ++t) {
      for (int64_t o = 0; o < y.view().cols; ++o) {
        double sum = add ? y.At(t, o) : 0, magnitudes = std::abs(sum);
        const auto count = [&](double term) {
          sum += term;
          magnitudes += std::abs(term);
        };
        if (!bias.empty()) count(bias[static_cast<size_t>(o)]);
        for (int64_t i = 0; i < n; ++i) count(x.At(t, i) * weight.At(o, i));
        sums.push_back(sum);
        // A bias is added to the product's bf16: two roundings.
        const double product = bias.empty() ? 0 : std::abs(Product(t, o));
        tolerances.push_back(device.SumError(n, magnitudes, sum) +
                             2 * Rounding(y.view().dtype) * (std::abs(sum) + product));
      }
    }
  }

 private:
  size_t Index(int64_t t, int64_t o) const { return static_cast<size_t>(t * y.view().cols + o); }
};

class LinearTest : public DenseTest {
 protected:
  // x has the dtype that the device takes with weights of `dtype`, and values of that dtype. The
  // case has no reference yet (Refer).
  LinearCase Make(int64_t rows, int64_t out, int64_t in, DType dtype, DType y_dtype, bool bias,
                  bool add, int64_t padding) {
    LinearCase c{Matrix(target_->InputOf(dtype), rows, in, padding),
                 Matrix::Normal(random_, dtype, out, in, padding),
                 Matrix::Normal(random_, y_dtype, rows, out, padding),
                 {},
                 add,
                 {},
                 {}};
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < in; ++i) {
        c.x.Set(t, i, static_cast<float>(RoundTo(dtype, random_.Normal())));
      }
    }
    if (bias) c.bias = RandomVector(out);
    return c;
  }
  // The same product of another x.
  void SetX(LinearCase& c, const Matrix& x) {
    for (int64_t t = 0; t < x.view().rows; ++t) {
      for (int64_t i = 0; i < x.view().cols; ++i) c.x.Set(t, i, static_cast<float>(x.At(t, i)));
    }
    c.Refer(*target_);
  }
  LinearPart Target(const LinearCase& c) {
    return {OnDevice(c.weight), c.bias.empty() ? nullptr : Upload(c.bias), OnDevice(c.y)};
  }
  void Compare(const LinearCase& c, const MatrixView& y) {
    ExpectNear(
        y, [&](int64_t t, int64_t o) { return c.Want(t, o); },
        [&](int64_t t, int64_t o) { return c.Tolerance(t, o); });
  }
  void Check(LinearCase c) {
    c.Refer(*target_);
    SCOPED_TRACE(fmt::format("rows {}, out {}, in {}, {} -> {}, stride {}, bias {}, add {}",
                             c.x.view().rows, c.weight.view().rows, c.x.view().cols,
                             Name(c.weight.view().dtype), Name(c.y.view().dtype), c.x.view().stride,
                             !c.bias.empty(), c.add));
    const Epilogue epilogue = c.add ? Epilogue::kAdd : Epilogue::kStore;
    ForEachVariant([&] {
      const LinearPart target = Target(c);
      const MatrixView x = OnDevice(c.x);
      Linear(*stream_, x, target.weight, target.bias, target.y, epilogue);
      Compare(c, target.y);
      const LinearPart again = Target(c);
      if (target_->LinearOtherwise(*stream_, x, again, epilogue)) {
        SCOPED_TRACE("the other implementation");
        Compare(c, again.y);
      }
    });
  }

  // function(gate, up), both products of the same x.
  void CheckGated(int64_t rows, int64_t out, int64_t in, DType y_dtype, bool bias, int64_t padding,
                  const GateFunction& function = kSilu) {
    SCOPED_TRACE(fmt::format("gated, rows {}, out {}, in {} -> {}, bias {}, padding {}, linear {}",
                             rows, out, in, Name(y_dtype), bias, padding, function.linear));
    LinearCase gate = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    gate.Refer(*target_);
    LinearCase up = Make(rows, out, in, DType::kBF16, y_dtype, bias, false, padding);
    SetX(up, gate.x);
    const auto want = [&](int64_t t, int64_t o) {
      return GatedValue(function, gate.Want(t, o), up.Want(t, o));
    };
    ForEachVariant([&] {
      const LinearPart gate_part = Target(gate), up_part = Target(up);
      GatedLinear(*stream_, OnDevice(gate.x), gate_part, up_part, function);
      ExpectNear(gate_part.y, want, [&](int64_t t, int64_t o) {
        // With many rows, gate and up are rounded before they are multiplied: their tolerances
        // include that.
        return GatedError(function, gate.Want(t, o), gate.Tolerance(t, o), up.Want(t, o),
                          up.Tolerance(t, o), Rounding(y_dtype));
      });
    });
  }
};

}  // namespace litecache::ops
