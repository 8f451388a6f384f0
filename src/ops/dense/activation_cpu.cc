#include "ops/dense/activation_cpu.h"

#include <cmath>

#include "ops/common/row_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dense/activation_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// The first factor of the function, without its limit.
template <class D>
HWY_INLINE hn::Vec<D> Gate(D d, const GateFunction& function, hn::Vec<D> g) {
  const auto square = hn::Min(hn::Mul(g, g), hn::Set(d, 1e30f));
  const auto slope = hn::MulAdd(hn::Set(d, function.cubic), square, hn::Set(d, function.linear));
  return hn::Div(g, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(hn::Mul(slope, g)))));
}

void GateMulRow(const float* gate, const float* up, int64_t n, GateFunction function, float* y) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto limit = hn::Set(d, function.limit);
    const auto g = hn::Min(limit, hn::LoadU(d, gate + i));
    const auto u = hn::Min(limit, hn::Max(hn::Neg(limit), hn::LoadU(d, up + i)));
    const auto factor = hn::Add(u, hn::Set(d, function.up_added));
    hn::StoreU(hn::Mul(Gate(d, function, g), factor), d, y + i);
  });
}

void SigmoidMulRow(const float* gate, int64_t n, float* x) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto denominator = hn::Add(one, Exp(d, hn::Neg(hn::LoadU(d, gate + i))));
    hn::StoreU(hn::Div(hn::LoadU(d, x + i), denominator), d, x + i);
  });
}

void ScaleRow(float factor, int64_t n, float* x) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  });
}

void ReluRow(float* x, int64_t n) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Max(hn::LoadU(d, x + i), hn::Zero(d)), d, x + i);
  });
}

void ReluSquaredRow(float* x, int64_t n) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto positive = hn::Max(hn::LoadU(d, x + i), hn::Zero(d));
    hn::StoreU(hn::Mul(positive, positive), d, x + i);
  });
}

void GeluRow(float* x, int64_t n) {
  ForEachVector(n, [=](auto d, int64_t i)
                       HWY_ATTR { hn::StoreU(Gate(d, kGeluTanh, hn::LoadU(d, x + i)), d, x + i); });
}

// exp(x) - 1 - x for x <= 0: of small ones by the series, since the difference would cancel.
template <class D>
HWY_INLINE hn::Vec<D> ExpBeyondLine(D d, hn::Vec<D> x) {
  auto series = hn::Set(d, 1.0f / 40320);
  for (const float factor : {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f}) {
    series = hn::MulAdd(series, x, hn::Set(d, factor));
  }
  series = hn::Mul(hn::Mul(x, x), series);
  const auto difference = hn::Sub(hn::Sub(Exp(d, x), hn::Set(d, 1.0f)), x);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, -0.5f)), series, difference);
}

void XieluRow(XieluFunction function, float* x, int64_t n) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    const auto line = hn::Mul(hn::Set(d, function.beta), v);
    const auto above = hn::MulAdd(hn::Mul(hn::Set(d, function.positive), v), v, line);
    const auto at = hn::Min(v, hn::Set(d, function.epsilon));
    const auto bent = hn::Add(ExpBeyondLine(d, at), hn::Sub(at, v));
    const auto below = hn::MulAdd(hn::Set(d, function.negative), bent, line);
    hn::StoreU(hn::IfThenElse(hn::Gt(v, hn::Zero(d)), above, below), d, x + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(GateMulRow);
HWY_EXPORT(SigmoidMulRow);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(ReluRow);
HWY_EXPORT(ReluSquaredRow);
HWY_EXPORT(GeluRow);
HWY_EXPORT(XieluRow);

namespace {

// Contiguous rows are treated as one long row, so that a single token's row is also split over the
// threads.
template <class Body>
void ForEachPiece(ThreadPool& pool, int64_t rows, int64_t cols, bool contiguous, const Body& body) {
  constexpr int64_t kPiece = 4096;
  if (contiguous) {
    cols *= rows;
    rows = 1;
  }
  const int64_t pieces = (cols + kPiece - 1) / kPiece;
  pool.ParallelFor(rows * pieces, RowGrain(cols / pieces), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kPiece;
      body(i / pieces, first, std::min(kPiece, cols - first));
    }
  });
}

bool Contiguous(const MatrixView& m) { return m.stride == m.cols || m.rows == 1; }

}  // namespace

void GateMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& up, const MatrixView& y,
             const GateFunction& function) {
  const auto row = HWY_DYNAMIC_DISPATCH(GateMulRow);
  ForEachPiece(pool, y.rows, y.cols, Contiguous(gate) && Contiguous(up) && Contiguous(y),
               [&](int64_t r, int64_t c, int64_t n) {
                 row(gate.Row<float>(r) + c, up.Row<float>(r) + c, n, function,
                     y.Row<float>(r) + c);
               });
}

void SigmoidMul(ThreadPool& pool, const MatrixView& gate, const MatrixView& x) {
  if (gate.cols == 1 && x.cols > 1) {
    const auto scale = HWY_DYNAMIC_DISPATCH(ScaleRow);
    ForEachPiece(pool, x.rows, x.cols, x.rows == 1, [&](int64_t r, int64_t c, int64_t n) {
      scale(1 / (1 + std::exp(-*gate.Row<float>(r))), n, x.Row<float>(r) + c);
    });
    return;
  }
  const auto row = HWY_DYNAMIC_DISPATCH(SigmoidMulRow);
  ForEachPiece(pool, x.rows, x.cols, Contiguous(gate) && Contiguous(x),
               [&](int64_t r, int64_t c, int64_t n) {
                 row(gate.Row<float>(r) + c, n, x.Row<float>(r) + c);
               });
}

namespace {

void ForEachRow(ThreadPool& pool, const MatrixView& x, void (*row)(float* x, int64_t n)) {
  ForEachPiece(pool, x.rows, x.cols, Contiguous(x),
               [&](int64_t r, int64_t c, int64_t n) { row(x.Row<float>(r) + c, n); });
}

}  // namespace

void Relu(ThreadPool& pool, const MatrixView& x) {
  ForEachRow(pool, x, HWY_DYNAMIC_DISPATCH(ReluRow));
}

void ReluSquared(ThreadPool& pool, const MatrixView& x) {
  ForEachRow(pool, x, HWY_DYNAMIC_DISPATCH(ReluSquaredRow));
}

void Gelu(ThreadPool& pool, const MatrixView& x) {
  ForEachRow(pool, x, HWY_DYNAMIC_DISPATCH(GeluRow));
}

void Xielu(ThreadPool& pool, const XieluFunction& function, const MatrixView& x) {
  const auto row = HWY_DYNAMIC_DISPATCH(XieluRow);
  ForEachPiece(pool, x.rows, x.cols, Contiguous(x),
               [&](int64_t r, int64_t c, int64_t n) { row(function, x.Row<float>(r) + c, n); });
}

}  // namespace litecache::ops::cpu
#endif
