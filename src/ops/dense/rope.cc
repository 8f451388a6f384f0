#include "ops/dense/rope.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/norm.h"
#include "ops/dense/norm_cpu.h"
#include "ops/dense/norm_cuda.h"
#include "ops/dense/rope_cpu.h"
#include "ops/dense/rope_cuda.h"

namespace litecache::ops {

void RopeRotations(Stream& stream, std::span<const int32_t> positions,
                   std::span<const float> inv_freq, float scale, const MatrixView& rotations,
                   const RopeGrowth& growth) {
  LC_CHECK(rotations.dtype == DType::kF32);
  LC_CHECK(rotations.rows == static_cast<int64_t>(positions.size()) &&
               rotations.cols == 2 * static_cast<int64_t>(inv_freq.size()),
           "rotations [{}, {}], {} positions, {} frequencies", rotations.rows, rotations.cols,
           positions.size(), inv_freq.size());
  if (rotations.rows == 0) return;
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream))
      return cuda::RopeRotations(stream, positions.data(), inv_freq.data(), scale, growth,
                                 rotations);
  }
  cpu::RopeRotations(AsCpu(stream).pool(), positions, inv_freq, scale, growth, rotations);
}

void Rope(Stream& stream, const MatrixView& x, const MatrixView& rotations, int64_t heads,
          RopePairs pairs) {
  LC_CHECK(x.dtype == DType::kF32 && rotations.dtype == DType::kF32);
  LC_CHECK(x.rows == rotations.rows && heads >= 1 && x.cols % heads == 0 &&
               x.cols >= heads * rotations.cols && rotations.cols % 2 == 0,
           "x [{}, {}], rotations [{}, {}], {} heads", x.rows, x.cols, rotations.rows,
           rotations.cols, heads);
  if (x.rows == 0) return;
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) return cuda::Rope(stream, x, rotations, heads, pairs);
  }
  cpu::Rope(AsCpu(stream).pool(), x, rotations, heads, pairs);
}

void RotateHeads(Stream& stream, std::span<const ProjectedHeads> parts, float norm_eps,
                 const MatrixView& rotations, RopePairs pairs) {
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) {
      return cuda::RotateHeads(stream, parts, norm_eps, rotations, pairs);
    }
  }
  for (const auto& [x, heads, norm] : parts) {
    if (norm != nullptr) RmsNorm(stream, x, norm, norm_eps, heads, x);
    Rope(stream, x, rotations, heads, pairs);
  }
}

}  // namespace litecache::ops
