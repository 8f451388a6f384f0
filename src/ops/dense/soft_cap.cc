#include "ops/dense/soft_cap.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/common/row_grain.h"
#include "ops/dense/soft_cap_cpu.h"
#include "ops/dense/soft_cap_cuda.h"

namespace litecache::ops {

void SoftCap(Stream& stream, float cap, const MatrixView& x) {
  LC_CHECK(x.dtype == DType::kF32 && cap > 0, "cap {}", cap);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::SoftCap(stream, cap, x);
  }
  AsCpu(stream).pool().ParallelFor(x.rows, cpu::RowGrain(x.cols),
                                   [&](int64_t begin, int64_t end, int) {
                                     for (int64_t row = begin; row < end; ++row)
                                       cpu::SoftCap(x.Row<float>(row), x.cols, cap);
                                   });
}

}  // namespace litecache::ops
