#include "device/cpu/cpu_isa.h"
#include "ops/common/avx512.h"
#include "ops/common/gemm_kernel_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/gemm_f32_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

// AVX-512 has 32 registers: 24 sums, the panel's vectors and a broadcast. Others have 16.
constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 24 : 12;
constexpr int kMaxVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

template <int kVectors>
constexpr int RowsOf() {
  return kSums / kVectors < 12 ? kSums / kVectors : 12;
}

template <int kVectors, int kRows>
HWY_NOINLINE void Tile(const float* panel, int64_t depth, const std::byte* b, int64_t row_bytes,
                       int64_t step_bytes, bool accumulate, float* sums) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<F32> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? hn::Load(d, sums + (r * kVectors + v) * lanes) : hn::Zero(d);
    }
  }
  for (int64_t i = 0; i < depth; ++i) {
    hn::Vec<F32> a[kVectors];
    for (int v = 0; v < kVectors; ++v) a[v] = hn::Load(d, panel + (i * kVectors + v) * lanes);
    for (int r = 0; r < kRows; ++r) {
      float element;
      std::memcpy(&element, b + r * row_bytes, sizeof(element));
      const auto broadcast = hn::Set(d, element);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a[v], broadcast, sum[r][v]);
    }
    b += step_bytes;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], d, sums + (r * kVectors + v) * lanes);
    }
  }
}

template <int kVectors, int kRows>
void Rest(int64_t rows, const float* panel, int64_t depth, const std::byte* b, int64_t row_bytes,
          int64_t step_bytes, bool accumulate, float* sums) {
  if (rows == kRows) {
    Tile<kVectors, kRows>(panel, depth, b, row_bytes, step_bytes, accumulate, sums);
  } else if constexpr (kRows > 1) {
    Rest<kVectors, kRows - 1>(rows, panel, depth, b, row_bytes, step_bytes, accumulate, sums);
  }
}

template <int kVectors>
void MultiplyWidth(const float* panel, int64_t depth, const std::byte* b, int64_t row_bytes,
                   int64_t step_bytes, int64_t rows, bool accumulate, float* sums) {
  constexpr int kRows = RowsOf<kVectors>();
  const auto width = kVectors * static_cast<int64_t>(hn::Lanes(F32()));
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    Tile<kVectors, kRows>(panel, depth, b + r * row_bytes, row_bytes, step_bytes, accumulate,
                          sums + r * width);
  }
  if (r < rows) {
    Rest<kVectors, kRows - 1>(rows - r, panel, depth, b + r * row_bytes, row_bytes, step_bytes,
                              accumulate, sums + r * width);
  }
}

void MultiplyF32(const void* panel, int64_t vectors, int64_t depth, const void* b,
                 int64_t row_bytes, int64_t step_bytes, int64_t rows, bool accumulate,
                 float* sums) {
  const auto* p = static_cast<const float*>(panel);
  const auto* bytes = static_cast<const std::byte*>(b);
  if (vectors == 1) {
    MultiplyWidth<1>(p, depth, bytes, row_bytes, step_bytes, rows, accumulate, sums);
  } else if (vectors == 2) {
    MultiplyWidth<2>(p, depth, bytes, row_bytes, step_bytes, rows, accumulate, sums);
#if HWY_TARGET == HWY_AVX3
  } else if (vectors == 3) {
    MultiplyWidth<3>(p, depth, bytes, row_bytes, step_bytes, rows, accumulate, sums);
  } else {
    MultiplyWidth<4>(p, depth, bytes, row_bytes, step_bytes, rows, accumulate, sums);
#endif
  }
}

void PackF32(const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t vectors,
             bool round_to_bf16, void* panel) {
  const F32x1 d1;
  const auto width = vectors * static_cast<int64_t>(hn::Lanes(F32()));
  auto* out = static_cast<float*>(panel);
  for (int64_t i = 0; i < depth; ++i, out += width) {
    for (int64_t r = 0; r < rows; ++r) {
      const float value = x[r * stride + i];
      out[r] = round_to_bf16 ? hn::GetLane(RoundToBf16(d1, hn::Set(d1, value))) : value;
    }
    for (int64_t r = rows; r < width; ++r) out[r] = 0;
  }
}

void StoreF32(const float* sums, int64_t width, int64_t tokens, int64_t n, const float* bias,
              bool add, float* y, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* out = y + t * stride;
    for (int64_t i = 0; i < n; ++i) {
      float value = sums[i * width + t];
      if (bias != nullptr) value += bias[i];
      out[i] = add ? out[i] + value : value;
    }
  }
}

GemmKernel MakeF32Kernel() {
  return {.lanes = static_cast<int64_t>(hn::Lanes(F32())),
          .max_vectors = kMaxVectors,
          .step = 1,
          .pack = PackF32,
          .multiply = MultiplyF32,
          .store = StoreF32};
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {
HWY_EXPORT(MakeF32Kernel);

GemmKernel F32GemmKernel() {
  GemmKernel kernel = HWY_DYNAMIC_DISPATCH(MakeF32Kernel)();
  if (ActiveCpuIsa() >= CpuIsa::kAvx512) {
    kernel.pack = Avx512PackF32;
    kernel.store = Avx512Store;
  }
  return kernel;
}

std::optional<GemmKernel> Bf16GemmKernel() {
  if (ActiveCpuIsa() < CpuIsa::kAvx512Bf16) return std::nullopt;
  return Avx512Bf16GemmKernel();
}

}  // namespace litecache::ops::cpu
#endif
