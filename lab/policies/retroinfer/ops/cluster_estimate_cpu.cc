#include <algorithm>
#include <limits>
#include <vector>

#include "lab/policies/common/points_cpu.h"
#include "lab/policies/retroinfer/ops/clusters_cpu.h"
#include "ops/attention/row_attention.h"
#include "ops/common/row_address.h"
#include "ops/common/scratch.h"
#include "ops/select/group_softmax_cpu.h"

namespace litecache::lab::ops::cpu {
namespace {

constexpr int64_t kAhead = 8;  // number of rows prefetched

struct Piece {
  const ClusterEstimateWork* work;
  int64_t begin, end;
  float* state;
};

void Estimate(const Piece& piece, int64_t group) {
  static thread_local Scratch weight_scratch, size_scratch, address_scratch;
  const ClusterEstimateWork& w = *piece.work;
  const RowFormat& format = w.clusters.format;
  const int64_t d = format.head_dim, count = piece.end - piece.begin;
  const size_t half = format.row_bytes() / 2;
  const int32_t* ids = w.ids + piece.begin;
  auto* weights = weight_scratch.Reserve<float>(static_cast<size_t>(group * count));
  auto* sizes = size_scratch.Reserve<float>(static_cast<size_t>(count));
  auto* values = address_scratch.Reserve<const std::byte*>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t page = ids[i] / w.clusters.page_clusters;
    const int64_t within = ids[i] % w.clusters.page_clusters;
    sizes[i] = static_cast<float>(w.clusters.Sizes(page)[within]);
    values[i] = w.clusters.Row(ids[i]) + half;
    if (i < kAhead) PrefetchRow(values[i], half);
  }
  float* maximum = piece.state;
  float* sum = maximum + group;
  float* out = sum + group;
  for (int64_t j = 0; j < group; ++j) {
    float* x = weights + j * count;
    for (int64_t i = 0; i < count; ++i) x[i] = w.logits[j * w.logit_stride + ids[i]];
    maximum[j] = SoftmaxPiece(x, count, 1).maximum;
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(sizes[i]) * x[i];
    sum[j] = static_cast<float>(total);
  }
  std::fill(out, out + group * d, 0.0f);
  AddWeighted(format.encoding == RowEncoding::kBF16 ? DType::kBF16 : DType::kF32, values, count,
              weights, count, group, d, out);
}

}  // namespace

void ClusterEstimate(ThreadPool& pool, int64_t group, std::span<const ClusterEstimateWork> work) {
  std::vector<Piece> pieces;
  for (const ClusterEstimateWork& w : work) {
    const int64_t states = EstimateStates(w.count);
    const int64_t size = StateSize(group, w.clusters.format.head_dim);
    for (int64_t s = 0; s < states; ++s) {
      pieces.push_back({&w, w.count * s / states, w.count * (s + 1) / states, w.states + s * size});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) Estimate(pieces[static_cast<size_t>(i)], group);
  });
}

}  // namespace litecache::lab::ops::cpu
