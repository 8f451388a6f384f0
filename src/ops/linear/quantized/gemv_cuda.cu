#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "ops/common/overlap.cuh"
#include "ops/common/shared_memory.cuh"
#include "ops/common/thread_block_clusters_cuda.h"
#include "ops/common/vectors.cuh"
#include "ops/linear/quantized/gemv_cuda.h"
#include "ops/linear/quantized/parts.cuh"

namespace litecache::ops::cuda {
namespace {

using namespace quantized;

constexpr int64_t kMostDepth = int64_t{1} << 20;
// Shared memory that the only block of the kernel for more rows on an SM takes.
constexpr int64_t kGemmBytes = 224 * 1024;
int64_t most_shared = INT64_MAX;  // by LimitSharedMemory

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

Arguments MakeArguments(const MatrixView& x, Epilogue epilogue, bool gated,
                        const GateFunction& function = kSilu) {
  LC_CHECK(x.rows >= 1 && x.dtype == DType::kBF16);
  LC_CHECK(x.cols >= 1 && x.cols <= kMostDepth, "{} columns", x.cols);
  return {.x = x.Row<const __nv_bfloat16>(0),
          .x_stride = x.stride,
          .rows = static_cast<int32_t>(x.rows),
          .depth = static_cast<int32_t>(x.cols),
          .chunks = static_cast<int32_t>(PackedChunks(x.cols)),
          .wide_x = Aligned(x, 8),
          .add = epilogue == Epilogue::kAdd,
          .gated = gated,
          .function = function,
          .targets = {}};
}

// Calls f.operator()<layout>().
template <typename F, int... kLayouts>
void CallForLayout(int layout, const F& f, std::integer_sequence<int, kLayouts...>) {
  ((layout == kLayouts ? f.template operator()<kLayouts>() : void()), ...);
}

using Launcher = void (*)(int layout, CudaStream& stream, const Arguments& a, int32_t tiles);

void LaunchGemv(int layout, CudaStream& stream, const Arguments& a, int32_t tiles) {
  LC_CHECK(a.rows <= kMaxQuantizedGemvRows);
  const auto launch = [&]<int kLayout>() {
    LaunchLayout<kLayout>(stream, a, a.gated ? tiles / 2 : tiles);
  };
  CallForLayout(layout, launch, std::make_integer_sequence<int, kPackedLayoutCount>());
}

void LaunchGemm(int layout, CudaStream& stream, const Arguments& a, int32_t tiles) {
  LC_CHECK(a.rows <= kMaxQuantizedGemmRows && a.wide_x);
  const auto launch = [&]<int kLayout>() { LaunchGemmLayout<kLayout>(stream, a, tiles); };
  CallForLayout(layout, launch, std::make_integer_sequence<int, kPackedLayoutCount>());
}

void Multiply(Launcher launch, CudaStream& stream, const MatrixView& x,
              std::span<const LinearPart> parts, Epilogue epilogue) {
  LC_CHECK(!parts.empty() && parts.size() <= kMaxGemvParts);
  const int layout = LayoutOf(parts[0].weight);
  for (const LinearPart& part : parts) LC_CHECK(LayoutOf(part.weight) == layout);
  Arguments a = MakeArguments(x, epilogue, /*gated=*/false);
  int32_t tiles = 0;
  if (FillTargets(parts, a, tiles) > 0) launch(layout, stream, a, tiles);
}

void MultiplyGated(Launcher launch, CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                   const LinearPart& up, const GateFunction& function) {
  const int layout = LayoutOf(gate.weight);
  LC_CHECK(LayoutOf(up.weight) == layout);
  LC_CHECK(gate.weight.rows == up.weight.rows && gate.y.rows == x.rows);
  Arguments a = MakeArguments(x, Epilogue::kStore, /*gated=*/true, function);
  const LinearPart parts[] = {gate, up};
  int32_t tiles = 0;
  if (FillTargets(parts, a, tiles) == 2) launch(layout, stream, a, tiles);
}

int Attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  LC_CUDA(cudaGetDevice(&device));
  LC_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

__global__ void ProbeKernel() {}

// How many clusters of `size` blocks run at once where an SM has room for per_sm blocks: partitions
// of SMs are no multiples of a cluster.
int32_t FindMostClusters(int32_t size, int32_t per_sm) {
  if (!UseClusters()) return 0;
  AllowSharedMemory(&ProbeKernel);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(size);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(size);
  config.blockDim = 256;
  config.dynamicSmemBytes = static_cast<size_t>(kGemmBytes / per_sm);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, ProbeKernel, &config) == cudaSuccess) {
    return clusters;
  }
  cudaGetLastError();  // clears the error of a refusal
  return 0;
}

int32_t MostClusters(const CudaStream& stream, int32_t size, int32_t per_sm) {
  const int32_t blocks = stream.sm_count() * per_sm;
  if (size == 1) return blocks;
  static std::mutex mutex;
  static std::map<std::pair<int32_t, int32_t>, int32_t> of_size;
  const std::lock_guard lock(mutex);
  const auto [known, is_new] = of_size.try_emplace({size, per_sm});
  if (is_new) known->second = FindMostClusters(size, per_sm);
  return std::min(known->second, blocks / size);
}

}  // namespace

bool QuantizedGemvServes() { return SharedMemoryOfBlock() >= kOneTeamBytes; }

bool QuantizedGemmServes(const MatrixView& x) {
  return KernelsKnowHopper() && SharedMemoryOfBlock() >= kGemmBytes && Aligned(x, 8);
}

void LimitSharedMemory(int64_t bytes) { most_shared = bytes; }

bool SamePackedLayout(const BlockFormat& a, const BlockFormat& b) {
  return PackedLayoutOf(a.name) == PackedLayoutOf(b.name);
}

void QuantizedGemv(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue) {
  Multiply(LaunchGemv, stream, x, parts, epilogue);
}

void QuantizedGatedGemv(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up, const GateFunction& function) {
  MultiplyGated(LaunchGemv, stream, x, gate, up, function);
}

void QuantizedGemm(CudaStream& stream, const MatrixView& x, std::span<const LinearPart> parts,
                   Epilogue epilogue) {
  Multiply(LaunchGemm, stream, x, parts, epilogue);
}

void QuantizedGatedGemm(CudaStream& stream, const MatrixView& x, const LinearPart& gate,
                        const LinearPart& up, const GateFunction& function) {
  MultiplyGated(LaunchGemm, stream, x, gate, up, function);
}

namespace quantized {

int64_t SharedMemoryOfBlock() {
  static const int64_t bytes = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return std::min(bytes, most_shared);
}

int64_t SharedMemoryOfSm() {
  static const int64_t bytes = Attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  static const int64_t reserved = Attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  return most_shared < bytes ? std::min(bytes, most_shared + reserved) : bytes;
}

Arguments RowsOf(Arguments a, int32_t first, int32_t count) {
  a.x += first * a.x_stride;
  a.rows = count;
  for (Target& target : a.targets) {
    if (target.y == nullptr) continue;
    const int64_t bytes = first * target.y_stride * (target.bf16_y ? 2 : 4);
    target.y = static_cast<uint8_t*>(target.y) + bytes;
  }
  return a;
}

GemmClusters ClustersFor(const CudaStream& stream, int32_t blocks, int32_t chunks, int32_t per_sm) {
  const int32_t sms = stream.sm_count();
  GemmClusters best{.count = std::min(blocks, sms), .size = 1};
  int32_t least = INT32_MAX;
  for (int32_t size = 1; size <= std::min(8, chunks); ++size) {
    const int32_t count = std::min(blocks, MostClusters(stream, size, per_sm));
    if (count == 0) continue;
    const int32_t rounds = (blocks + count - 1) / count;
    // In quarters of the time that a block alone on its SM takes for a chunk, from the times of
    // Llama 3.1 8B's products with clusters of each size on an H200. Larger clusters have two of
    // their blocks on an SM even if others are free.
    const bool apart = per_sm == 1 || (size <= 2 && count * size <= sms);
    const int32_t chunk = apart ? 4 : 7;
    const int32_t begin_and_end = (size <= 2 ? 8 : 12) * (per_sm == 1 ? 2 : 3) / 2;
    const int32_t time = rounds * ((chunks + size - 1) / size * chunk + begin_and_end);
    if (time >= least) continue;
    least = time;
    best = {.count = count, .size = size};
  }
  return best;
}

}  // namespace quantized
}  // namespace litecache::ops::cuda
