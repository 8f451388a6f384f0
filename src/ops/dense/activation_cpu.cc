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

void GateMulRow(const float* gate, const float* up, int64_t n, GateFunction function, float* y) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const auto limit = hn::Set(d, function.limit);
    const auto g = hn::Min(limit, hn::LoadU(d, gate + i));
    const auto u = hn::Min(limit, hn::Max(hn::Neg(limit), hn::LoadU(d, up + i)));
    const auto one = hn::Set(d, 1.0f);
    const auto square = hn::Min(hn::Mul(g, g), hn::Set(d, 1e30f));
    const auto slope = hn::MulAdd(hn::Set(d, function.cubic), square, hn::Set(d, function.linear));
    const auto denominator = hn::Add(one, Exp(d, hn::Neg(hn::Mul(slope, g))));
    const auto factor = hn::Add(u, hn::Set(d, function.up_added));
    hn::StoreU(hn::Mul(hn::Div(g, denominator), factor), d, y + i);
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

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(GateMulRow);
HWY_EXPORT(SigmoidMulRow);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(ReluRow);

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

void Relu(ThreadPool& pool, const MatrixView& x) {
  const auto row = HWY_DYNAMIC_DISPATCH(ReluRow);
  ForEachPiece(pool, x.rows, x.cols, Contiguous(x),
               [&](int64_t r, int64_t c, int64_t n) { row(x.Row<float>(r) + c, n); });
}

}  // namespace litecache::ops::cpu
#endif
