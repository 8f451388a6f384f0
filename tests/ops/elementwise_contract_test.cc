#include <functional>
#include <utility>

#include "ops/dense/activation.h"
#include "ops/dense/embedding.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

using ElementwiseTest = DenseTest;

TEST_F(ElementwiseTest, GateMul) {
  for (const DType in : target_->Activations()) {
    for (const DType out : target_->Activations()) {
      if (SizeOf(out) > SizeOf(in)) continue;
      for (const auto& [cols, padding] : {std::pair<int64_t, int64_t>{1, 0},
                                          {7, 1},
                                          {16, 4},
                                          {33, 0},
                                          {37, 0},
                                          {132, 4},
                                          {4096, 4},
                                          {5001, 1},
                                          {9000, 4},
                                          {14336, 0},
                                          {70001, 3}}) {
        SCOPED_TRACE(
            fmt::format("{} -> {}, cols {}, padding {}", Name(in), Name(out), cols, padding));
        Matrix gate = Matrix::Normal(random_, in, 3, cols, padding, 8.0f);
        gate.Set(0, 0, 0.0f);
        gate.Set(1, 0, 200.0f);
        gate.Set(2, 0, -200.0f);  // exp(200) is infinite
        const Matrix up = Matrix::Normal(random_, in, 3, cols, padding, 4.0f);
        for (const GateFunction& function : {kSilu, kGeluTanh, kClampedSwiglu}) {
          const bool gelu = function.cubic != 0;
          SCOPED_TRACE(fmt::format("linear {}", function.linear));
          const auto want = [&](int64_t r, int64_t c) {
            return GatedValue(function, gate.At(r, c), up.At(r, c));
          };
          ForEachVariant([&] {
            const MatrixView device = OnDevice(gate);
            const MatrixView y = in == out ? device : OnDevice(Matrix(out, 3, cols, padding));
            GateMul(*stream_, device, OnDevice(up), y, function);
            ExpectNear(y, want, [&](int64_t r, int64_t c) {
              // GELU's exponent grows with the third power, and its rounding error with it; of its
              // sum 1 + tanh, doubles have nothing left for gates below -6.
              const double g = gate.At(r, c);
              const double exponent = g >= 0 ? 0 : gelu ? 50.0 : function.linear != 1 ? -g : 0;
              return std::abs(want(r, c)) * (std::ldexp(12.0 + 4 * exponent, -24) + Rounding(out)) +
                     (gelu ? 1e-13 : 1e-30);
            });
          });
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, SigmoidMul) {
  for (DType dtype : target_->Activations()) {
    for (int64_t cols : {1, 5, 15, 64, 4099, 16384}) {
      for (const bool by_row : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, cols {}, by row {}", Name(dtype), cols, by_row));
        Matrix gate = Matrix::Normal(random_, DType::kF32, 3, by_row ? 1 : cols, 4, 4.0f);
        gate.Set(1, 0, 200.0f);
        gate.Set(2, 0, -200.0f);
        const Matrix x = Matrix::Normal(random_, dtype, 3, cols, 4);
        const auto want = [&](int64_t r, int64_t c) {
          return x.At(r, c) / (1 + std::exp(-gate.At(r, by_row ? 0 : c)));
        };
        ForEachVariant([&] {
          const MatrixView device = OnDevice(x);
          SigmoidMul(*stream_, OnDevice(gate), device);
          ExpectNear(device, want, [&](int64_t r, int64_t c) {
            return std::abs(want(r, c)) * (std::ldexp(16.0, -24) + Rounding(dtype)) + 1e-30;
          });
        });
      }
    }
  }
}

// Activations in place, of one matrix.
class InPlaceTest : public ElementwiseTest {
 protected:
  // want(x) is what `run` makes of an element, error(x) how far it may be off in f32; 0: in no
  // type.
  void Check(const std::function<void(const MatrixView& x)>& run,
             const std::function<double(double x)>& want,
             const std::function<double(double x)>& error) {
    for (DType dtype : target_->Activations()) {
      for (int64_t cols : {1, 5, 15, 64, 4099, 16384}) {
        SCOPED_TRACE(fmt::format("{}, cols {}", Name(dtype), cols));
        Matrix x = Matrix::Normal(random_, dtype, 4, cols, 4, 2.0f);
        x.Set(1, 0, 0.0f);
        x.Set(2, 0, -200.0f);
        // Small ones, where exponentials are nearly 1.
        for (int64_t c = 0; c < cols; ++c) x.Set(3, c, 0.01f * static_cast<float>(x.At(3, c)));
        ForEachVariant([&] {
          const MatrixView device = OnDevice(x);
          run(device);
          ExpectNear(
              device, [&](int64_t r, int64_t c) { return want(x.At(r, c)); },
              [&](int64_t r, int64_t c) {
                const double value = x.At(r, c);
                const double rounding = Rounding(dtype) * std::abs(want(value));
                return error(value) == 0 ? 0 : error(value) + rounding;
              });
        });
      }
    }
  }
};

TEST_F(InPlaceTest, Relu) {
  Check([&](const MatrixView& x) { Relu(*stream_, x); }, [](double x) { return std::max(x, 0.0); },
        [](double) { return 0.0; });
}

TEST_F(InPlaceTest, ReluSquared) {
  Check([&](const MatrixView& x) { ReluSquared(*stream_, x); },
        [](double x) { return x > 0 ? x * x : 0.0; },
        [](double x) { return std::ldexp(x * x, -24); });
}

TEST_F(InPlaceTest, Gelu) {
  Check([&](const MatrixView& x) { Gelu(*stream_, x); }, GeluTanh,
        // As of GateMul: the exponent's error grows with the third power.
        [](double x) {
          return std::abs(GeluTanh(x)) * std::ldexp(12.0 + (x < 0 ? 200 : 0), -24) + 1e-13;
        });
}

TEST_F(InPlaceTest, Xielu) {
  for (const auto& [positive, negative] : {std::pair(0.3f, -0.7f), {-1.1f, 0.9f}, {30.0f, 0.0f}}) {
    constexpr float kBeta = 0.5f, kEpsilon = -1e-6f;
    SCOPED_TRACE(fmt::format("alphas {} and {}", positive, negative));
    const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
    const double above = softplus(positive), below = kBeta + softplus(negative);
    const XieluFunction function = XieluFunction::Of(positive, negative, kBeta, kEpsilon);
    Check([&](const MatrixView& x) { Xielu(*stream_, function, x); },
          // Transformers' XIELUActivation.
          [&](double x) {
            return x > 0 ? above * x * x + kBeta * x
                         : (std::expm1(std::min<double>(x, kEpsilon)) - x) * below + kBeta * x;
          },
          [&](double x) {
            return std::ldexp(8.0 * (above * std::max(x, 0.0) * x + (below + 1) * std::abs(x)),
                              -24) +
                   1e-12;
          });
  }
}

TEST_F(ElementwiseTest, EmbeddingStoresAndAddsExactly) {
  for (DType dtype : target_->Tables()) {
    for (int64_t cols : {1, 7, 17, 64, 1001, 4096}) {
      for (bool add : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, cols {}, add {}", Name(dtype), cols, add));
        const Matrix table = Matrix::Normal(random_, dtype, 211, cols, 4);
        const Matrix y = Matrix::Normal(random_, DType::kF32, 40, cols, 4);
        std::vector<int32_t> ids(40);
        for (int32_t& id : ids) id = static_cast<int32_t>(random_.Integer(0, 210));
        ids[0] = 210;
        ids[1] = 0;
        ForEachVariant([&] {
          const MatrixView got = OnDevice(y);
          Embedding(*stream_, OnDevice(table), SpanOnDevice(ids), got,
                    add ? Epilogue::kAdd : Epilogue::kStore);
          ExpectNear(
              got,
              [&](int64_t r, int64_t c) {
                const auto value = static_cast<float>(table.At(ids[static_cast<size_t>(r)], c));
                return add ? static_cast<float>(y.At(r, c)) + value : value;
              },
              [](int64_t, int64_t) { return 0.0; });
        });
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops
