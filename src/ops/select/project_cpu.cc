#include "ops/select/project_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/project_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// AVX-512 has 32 registers: 24 sums, the matrix' vectors and a broadcast. Others have 16.
constexpr int kWide = HWY_TARGET == HWY_AVX3 ? 4 : 2;
constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 6 : 4;

template <int kRowCount, int kVectors>
HWY_INLINE void Tile(const float* x, int64_t stride, int64_t depth, const float* weight,
                     int64_t width, float* y) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<F32> sum[kRowCount][kVectors];
  for (int r = 0; r < kRowCount; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t c = 0; c < depth; ++c) {
    hn::Vec<F32> w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = hn::LoadU(d, weight + c * width + v * lanes);
    for (int r = 0; r < kRowCount; ++r) {
      const auto broadcast = hn::Set(d, x[r * stride + c]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(w[v], broadcast, sum[r][v]);
    }
  }
  for (int r = 0; r < kRowCount; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, y + r * width + v * lanes);
  }
}

template <int kVectors>
void Columns(const float* x, int64_t stride, int64_t rows, int64_t depth, const float* weight,
             int64_t width, float* y) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    Tile<kRows, kVectors>(x + r * stride, stride, depth, weight, width, y + r * width);
  }
  for (; r < rows; ++r) {
    Tile<1, kVectors>(x + r * stride, stride, depth, weight, width, y + r * width);
  }
}

void ProjectRows(const float* x, int64_t stride, int64_t rows, int64_t depth, const float* weight,
                 int64_t width, float* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t j = 0;
  for (; j + kWide * lanes <= width; j += kWide * lanes) {
    Columns<kWide>(x, stride, rows, depth, weight + j, width, y + j);
  }
  for (; j < width; j += lanes) Columns<1>(x, stride, rows, depth, weight + j, width, y + j);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ProjectRows);

void Project(const float* x, int64_t stride, int64_t rows, int64_t depth, const float* weight,
             int64_t width, float* y) {
  HWY_DYNAMIC_DISPATCH(ProjectRows)(x, stride, rows, depth, weight, width, y);
}

}  // namespace litecache::ops::cpu
#endif
