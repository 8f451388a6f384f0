#include "ops/rope.h"

#include "ops/cpu/ops.h"

namespace litecache::ops {

void Rope(Stream& stream, const MatrixView& x, std::span<const int32_t> positions, int64_t heads,
          std::span<const float> inv_freq, float scale) {
  LC_CHECK(x.dtype == DType::kF32);
  LC_CHECK(static_cast<int64_t>(positions.size()) == x.rows && heads >= 1 &&
               x.cols == heads * 2 * static_cast<int64_t>(inv_freq.size()),
           "x [{}, {}], {} positions, {} heads, {} frequencies", x.rows, x.cols, positions.size(),
           heads, inv_freq.size());
  if (x.rows == 0) return;
  cpu::Rope(AsCpu(stream).pool(), x, positions, heads, inv_freq, scale);
}

}  // namespace litecache::ops
