#include "ops/dense/convert.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/common/convert_rows_cpu.h"
#include "ops/common/row_grain.h"
#include "ops/dense/convert_cuda.h"

namespace litecache::ops {
namespace {

template <typename From, typename To>
void ConvertRows(ThreadPool& pool, const MatrixView& x, const MatrixView& y) {
  pool.ParallelFor(x.rows, cpu::RowGrain(x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const From* from = x.Row<const From>(r);
      To* to = y.Row<To>(r);
      for (int64_t c = 0; c < x.cols; ++c) to[c] = To(static_cast<float>(from[c]));
    }
  });
}

}  // namespace

void Convert(Stream& stream, const MatrixView& x, const MatrixView& y) {
  LC_CHECK(x.rows == y.rows && x.cols == y.cols);
  const bool narrow = x.dtype == DType::kF32;
  const DType other = narrow ? y.dtype : x.dtype;
  LC_CHECK((narrow || y.dtype == DType::kF32) && (other == DType::kBF16 || other == DType::kF16));
  if constexpr (cuda::kAvailable) {
    if (stream.device_type() == DeviceType::kCuda) return cuda::Convert(stream, x, y);
  }
  ThreadPool& pool = AsCpu(stream).pool();
  if (other == DType::kBF16) {
    narrow ? ConvertRows<float, bf16>(pool, x, y) : ConvertRows<bf16, float>(pool, x, y);
  } else {
    narrow ? ConvertRows<float, f16>(pool, x, y) : ConvertRows<f16, float>(pool, x, y);
  }
}

}  // namespace litecache::ops
