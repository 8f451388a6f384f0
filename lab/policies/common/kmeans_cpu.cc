#include "lab/policies/common/kmeans_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lab/policies/common/points_cpu.h"
#include "ops/common/gemm_kernel_cpu.h"
#include "ops/common/row_address.h"
#include "ops/common/scratch.h"

namespace litecache::lab::ops::cpu {
namespace {

// Number of centroids whose products with a tile of points fit the L1 cache: 96 * 64 lanes * 4
// bytes.
constexpr int64_t kCentroidTile = 96;

DType TypeOf(const RowFormat& format) {
  return format.encoding == RowEncoding::kBF16 ? DType::kBF16 : DType::kF32;
}

// Address of a point's first channel.
class PointAddress {
 public:
  explicit PointAddress(const KeyPoints& points)
      : row_(points.rows),
        offset_(static_cast<size_t>(points.channel) * SizeOf(TypeOf(points.rows.format))),
        begin_(points.begin) {}
  const std::byte* operator()(int64_t i) const { return row_(begin_ + i) + offset_; }

 private:
  RowAddress row_;
  size_t offset_;
  int64_t begin_;
};

struct Tile {
  const AssignWork* work;
  int64_t begin, count;
};

void AssignTile(const GemmKernel& kernel, const Tile& tile) {
  static thread_local Scratch point_scratch, panel_scratch, sum_scratch, best_scratch;
  const AssignWork& w = *tile.work;
  const int64_t n = w.points.channels;
  const int64_t vectors = (tile.count + kernel.lanes - 1) / kernel.lanes;
  const int64_t width = vectors * kernel.lanes;
  auto* points = point_scratch.Reserve<float>(static_cast<size_t>(tile.count * n));
  auto* panel = panel_scratch.Reserve<float>(static_cast<size_t>(kernel.Steps(n) * width));
  auto* sums = sum_scratch.Reserve<float>(static_cast<size_t>(kCentroidTile * width));
  auto* best = best_scratch.Reserve<float>(static_cast<size_t>(2 * width));
  auto* index = reinterpret_cast<int32_t*>(best + width);
  const PointAddress address(w.points);
  const DType dtype = TypeOf(w.points.rows.format);
  for (int64_t i = 0; i < tile.count; ++i) {
    CenterPoint(dtype, address(tile.begin + i), w.points.center, n, points + i * n);
  }
  kernel.pack(points, n, tile.count, n, vectors, false, panel);
  std::fill(best, best + width, -std::numeric_limits<float>::infinity());
  std::fill(index, index + width, w.first);
  const auto row_bytes = n * static_cast<int64_t>(sizeof(float));
  for (int64_t c = 0; c < w.clusters; c += kCentroidTile) {
    const int64_t rows = std::min(kCentroidTile, w.clusters - c);
    kernel.multiply(panel, vectors, n, w.centroids + c * n, row_bytes, sizeof(float), rows, false,
                    sums);
    BestRows(sums, rows, width, w.bias == nullptr ? nullptr : w.bias + c,
             w.first + static_cast<int32_t>(c), best, index);
  }
  std::copy_n(index, tile.count, w.assignment + tile.begin);
}

void Update(const CentroidWork& w) {
  static thread_local Scratch sum_scratch, point_scratch;
  const int64_t n = w.points.channels;
  auto* sums = sum_scratch.Reserve<float>(static_cast<size_t>(w.clusters * n));
  auto* point = point_scratch.Reserve<float>(static_cast<size_t>(n));
  std::fill(sums, sums + w.clusters * n, 0.0f);
  std::fill(w.sizes, w.sizes + w.clusters, 0);
  const PointAddress address(w.points);
  const DType dtype = TypeOf(w.points.rows.format);
  for (int64_t i = 0; i < w.points.count; ++i) {
    const int64_t c = w.assignment[i] - w.first;
    CenterPoint(dtype, address(i), w.points.center, n, point);
    AddPoint(point, n, sums + c * n);
    ++w.sizes[c];
  }
  for (int64_t c = 0; c < w.clusters; ++c) {
    if (w.sizes[c] == 0) continue;
    const float* sum = sums + c * n;
    float factor = 1.0f / static_cast<float>(w.sizes[c]);
    if (w.normalize) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(sum[i]) * sum[i];
      factor = squares > 0 ? static_cast<float>(1 / std::sqrt(squares)) : 0.0f;
    }
    for (int64_t i = 0; i < n; ++i) w.centroids[c * n + i] = sum[i] * factor;
  }
}

}  // namespace

void AssignToCentroids(ThreadPool& pool, std::span<const AssignWork> work) {
  const GemmKernel kernel = F32GemmKernel();
  std::vector<Tile> tiles;
  for (const AssignWork& w : work) {
    for (int64_t begin = 0; begin < w.points.count; begin += kernel.max_width()) {
      tiles.push_back({&w, begin, std::min(kernel.max_width(), w.points.count - begin)});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) AssignTile(kernel, tiles[static_cast<size_t>(i)]);
  });
}

void UpdateCentroids(ThreadPool& pool, std::span<const CentroidWork> work) {
  pool.ParallelFor(static_cast<int64_t>(work.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) Update(work[static_cast<size_t>(i)]);
  });
}

}  // namespace litecache::lab::ops::cpu
