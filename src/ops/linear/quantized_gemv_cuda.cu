#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "ops/common/overlap.cuh"
#include "ops/common/vectors.cuh"
#include "ops/linear/quantized_gemv_cuda.h"
#include "ops/linear/quantized_parts.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace quantized;

constexpr int64_t kMostDepth = int64_t{1} << 20;
// Of a block: the largest rings, and x and sums beside them.
constexpr int kSharedNeeded = 224 * 1024;

int LayoutOf(const MatrixView& weight) {
  LC_CHECK(weight.dtype == DType::kBlocks && weight.format != nullptr);
  const int layout = PackedLayoutOf(weight.format->name);
  LC_CHECK(layout >= 0, "{} is not packed", weight.format->name);
  return layout;
}

// The parts' targets; those without outputs are left out. Returns their number.
int FillTargets(std::span<const LinearPart> parts, Arguments& a, int32_t& tiles) {
  int count = 0;
  tiles = 0;
  for (const auto& [weight, bias, y] : parts) {
    if (weight.rows == 0) continue;
    LC_CHECK(weight.rows <= INT32_MAX / 8);
    LC_CHECK(reinterpret_cast<uintptr_t>(weight.data) % 16 == 0);
    const auto outputs = static_cast<int32_t>(weight.rows);
    a.targets[count++] = {.weight = static_cast<const uint8_t*>(weight.data),
                          .bias = bias,
                          .y = y.data,
                          .y_stride = y.stride,
                          .outputs = outputs,
                          .first = tiles,
                          .bf16_y = y.dtype == DType::kBF16};
    tiles += (outputs + kRowsOfTile - 1) / kRowsOfTile;
  }
  for (int i = count; i < kMaxGemvParts; ++i) a.targets[i].first = INT32_MAX;
  return count;
}

Arguments MakeArguments(const MatrixView& x, Epilogue epilogue, bool gated) {
  LC_CHECK(x.rows >= 1 && x.rows <= kMaxGemvRows && x.dtype == DType::kBF16);
  LC_CHECK(x.cols >= 1 && x.cols <= kMostDepth, "{} columns", x.cols);
  return {.x = x.Row<const __nv_bfloat16>(0),
          .x_stride = x.stride,
          .rows = static_cast<int32_t>(x.rows),
          .depth = static_cast<int32_t>(x.cols),
          .chunks = static_cast<int32_t>(PackedChunks(x.cols)),
          .wide_x = Aligned(x, 8),
          .add = epilogue == Epilogue::kAdd,
          .gated = gated,
          .targets = {}};
}

template <int... kLayouts>
void LaunchOne(int layout, CudaStream& stream, const Arguments& a, int32_t units,
               std::integer_sequence<int, kLayouts...>) {
  ((layout == kLayouts ? LaunchLayout<kLayouts>(stream, a, units) : void()), ...);
}

void Launch(int layout, CudaStream& stream, const Arguments& a, int32_t units) {
  LaunchOne(layout, stream, a, units, std::make_integer_sequence<int, kPackedLayoutCount>());
}

}  // namespace

bool QuantizedGemvServes() {
  static const bool serves = [] {
    int device = 0, shared = 0;
    LC_CUDA(cudaGetDevice(&device));
    LC_CUDA(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return KernelsKnowHopper() && shared >= kSharedNeeded;
  }();
  return serves;
}

bool SamePackedLayout(const BlockFormat& a, const BlockFormat& b) {
  return PackedLayoutOf(a.name) == PackedLayoutOf(b.name);
}

void QuantizedGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue) {
  LC_CHECK(!parts.empty() && parts.size() <= kMaxGemvParts);
  const int layout = LayoutOf(parts[0].weight);
  for (const LinearPart& part : parts) LC_CHECK(LayoutOf(part.weight) == layout);
  Arguments a = MakeArguments(x, epilogue, /*gated=*/false);
  int32_t tiles = 0;
  if (FillTargets(parts, a, tiles) > 0) Launch(layout, stream, a, tiles);
}

void QuantizedGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up) {
  const int layout = LayoutOf(gate.weight);
  LC_CHECK(LayoutOf(up.weight) == layout);
  LC_CHECK(gate.weight.rows == up.weight.rows && gate.y.rows == x.rows);
  Arguments a = MakeArguments(x, Epilogue::kStore, /*gated=*/true);
  const LinearPart parts[] = {gate, up};
  int32_t tiles = 0;
  if (FillTargets(parts, a, tiles) == 2) Launch(layout, stream, a, tiles / 2);
}

}  // namespace litecache::ops::cuda
