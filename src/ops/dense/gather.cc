#include "ops/dense/gather.h"

#include <cstring>

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/common/row_grain.h"
#include "ops/dense/gather_cuda.h"

namespace litecache::ops {

void GatherRows(Stream& stream, const MatrixView& x, std::span<const int32_t> rows,
                const MatrixView& y) {
  LC_CHECK(x.dtype == y.dtype && x.cols == y.cols && static_cast<int64_t>(rows.size()) == y.rows);
  if (y.rows == 0 || y.cols == 0) return;
  if constexpr (cuda::kAvailable) {
    if (stream.device_type() == DeviceType::kCuda)
      return cuda::GatherRows(stream, x, rows.data(), y);
  }
  const size_t element = SizeOf(x.dtype);
  const auto bytes = static_cast<size_t>(x.cols) * element;
  AsCpu(stream).pool().ParallelFor(
      y.rows, cpu::RowGrain(y.cols), [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int32_t row = rows[static_cast<size_t>(i)];
          LC_CHECK(row >= 0 && row < x.rows, "row {} of {}", row, x.rows);
          std::memcpy(
              static_cast<std::byte*>(y.data) + static_cast<size_t>(i * y.stride) * element,
              static_cast<const std::byte*>(x.data) + static_cast<size_t>(row * x.stride) * element,
              bytes);
        }
      });
}

void CopyRows(Stream& stream, const MatrixView& x, const MatrixView& y) {
  LC_CHECK(x.dtype == y.dtype && x.rows == y.rows && x.cols == y.cols && x.format == nullptr);
  if (y.rows == 0 || y.cols == 0) return;
  if constexpr (cuda::kAvailable) {
    if (stream.device_type() == DeviceType::kCuda) return cuda::CopyRows(stream, x, y);
  }
  AsCpu(stream).pool().ParallelFor(y.rows, cpu::RowGrain(y.cols),
                                   [&](int64_t begin, int64_t end, int) {
                                     for (int64_t i = begin; i < end; ++i) {
                                       std::memcpy(y.Rows(i, 1).data, x.Rows(i, 1).data,
                                                   static_cast<size_t>(x.cols) * SizeOf(x.dtype));
                                     }
                                   });
}

}  // namespace litecache::ops
