// Products with packed blocks on a GPU, and what they should be.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "ops/blocks_testing_cuda.h"
#include "ops/linear/linear.h"
#include "ops/linear/quantized/gemv_cuda.h"
#include "ops/linear/quantized/linear_cuda.h"
#include "ops/linear/quantized/packed_layout.h"

namespace litecache::ops::cuda {

inline bool HasMinimum(std::string_view format) {
  return format == "Q4_1" || format == "Q5_1" || format == "Q2_K" || format == "Q4_K" ||
         format == "Q5_K";
}

inline const MatrixView kAlignedX = MatrixView::Of(static_cast<void*>(nullptr), DType::kBF16, 1, 8);

// Rounded once: through f32, a value near the middle between two might be rounded twice.
inline double RoundToBf16(double value) {
  auto f32 = static_cast<float>(value);
  if (f32 != value) {
    // Towards zero, and an odd last bit instead of those that f32 lacks.
    if (std::abs(f32) > std::abs(value)) f32 = std::nextafter(f32, 0.0f);
    f32 = std::bit_cast<float>(std::bit_cast<uint32_t>(f32) | 1);
  }
  return RoundTo(DType::kBF16, f32);
}

// A value that was made of a scale and a minimum in bf16. Integers with a minimum are taken around
// the middle of their range.
inline double WithRoundedScale(const PackedLayout& layout, const PackedScale& scale, float value) {
  if (scale.scale == 0) return RoundTo(DType::kBF16, scale.minimum);
  const int middle = layout.minimum ? 1 << (layout.bits + layout.high_bits - 1) : 0;
  const double integer = std::round((double{value} - scale.minimum) / scale.scale) - middle;
  const auto minimum = std::fma(static_cast<float>(middle), scale.scale, scale.minimum);
  return RoundToBf16(integer * RoundTo(DType::kBF16, scale.scale) + RoundTo(DType::kBF16, minimum));
}

class CudaQuantizedLinearTest : public CudaBlocksTest {
 protected:
  // The case with the values that the implementation multiplies.
  LinearCase CaseOf(BlockWeights& weights, int64_t rows, DType y, bool bias, bool add,
                    int64_t padding) {
    const bool gemm = padding % 8 == 0 && QuantizedGemmServes(kAlignedX);
    const bool exact =
        rows <= (gemm ? kMaxQuantizedGemvRows : kMostGemvRows) && QuantizedGemvServes();
    LinearCase c{Matrix(DType::kBF16, rows, weights.cols, padding),
                 Matrix(DType::kF32, weights.rows, weights.cols),
                 Matrix::Normal(random_, y, rows, weights.rows, padding),
                 {},
                 add,
                 {},
                 {}};
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < weights.cols; ++i) c.x.Set(t, i, random_.Normal());
    }
    const PackedLayout& layout = kPackedLayouts[PackedLayoutOf(weights.format->name)];
    const bool rounded_scales = gemm && !exact && rows <= kMostPiecewiseRows && layout.bits < 8;
    const std::vector<std::byte> packed = weights.Packed();
    for (int64_t o = 0; o < weights.rows; ++o) {
      const auto* const tile = reinterpret_cast<const uint8_t*>(packed.data()) +
                               o / kPackedRows * PackedChunks(weights.cols) * layout.Bytes();
      for (int64_t i = 0; i < weights.cols; ++i) {
        double value = weights.At(o, i);
        if (rounded_scales) {
          const PackedScale scale = ReadPackedScale(
              layout, tile + i / kChunkColumns * layout.Bytes(), static_cast<int>(o % kPackedRows),
              static_cast<int>(i % kChunkColumns) / layout.group);
          value = WithRoundedScale(layout, scale, weights.At(o, i));
        } else if (!exact) {
          value = RoundTo(DType::kBF16, weights.At(o, i));
        }
        c.weight.Set(o, i, static_cast<float>(value));
      }
    }
    if (bias) c.bias = RandomVector(weights.rows);
    Refer(c, *weights.format);
    return c;
  }
  void Refer(LinearCase& c, const BlockFormat& format) {
    c.Refer(*target_);
    if (!HasMinimum(format.name)) return;
    // Its integers are summed with 128 added, which is several times their size.
    for (double& tolerance : c.tolerances) tolerance *= 4;
  }

  LinearPart PartOf(const LinearCase& c, const MatrixView& weight) {
    return {weight, c.bias.empty() ? nullptr : Upload(c.bias), OnDevice(c.y)};
  }

  void CheckBlocks(std::string_view format, int64_t rows, int64_t out, int64_t in, DType y,
                   bool bias, bool add, int64_t padding) {
    SCOPED_TRACE(fmt::format("{}, rows {}, out {}, in {} -> {}, bias {}, add {}, padding {}",
                             format, rows, out, in, Name(y), bias, add, padding));
    BlockWeights weights(random_, format, out, in);
    const LinearCase c = CaseOf(weights, rows, y, bias, add, padding);
    const LinearPart part = PartOf(c, PackedOnDevice(weights));
    ops::Linear(*stream_, OnDevice(c.x), {&part, 1}, add ? Epilogue::kAdd : Epilogue::kStore);
    Compare(c, part.y);
    buffers_.clear();
  }

  std::vector<float> Product(const MatrixView& x, const MatrixView& weight) {
    const auto size = static_cast<size_t>(x.rows * weight.rows);
    auto* y = Poisoned<float>(size);
    ops::Linear(*stream_, x, weight, nullptr, MatrixView::Of(y, x.rows, weight.rows));
    return Download(y, size);
  }
};

// While it lives, the kernels run as on consumers' GPUs.
class LittleSharedMemory {
 public:
  LittleSharedMemory() { LimitSharedMemory(99 * 1024); }
  ~LittleSharedMemory() { LimitSharedMemory(INT64_MAX); }
};

}  // namespace litecache::ops::cuda
