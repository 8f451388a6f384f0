// Each iteration assigns every token to a centroid (bf16 matrix products), sorts the tokens by
// cluster, and sums each cluster's keys in f64, where sums of bf16 values are exact: they do not
// depend on the order in which atomics placed the tokens. Only the rows to be stored have to be
// brought into token order within clusters.
#include <algorithm>
#include <type_traits>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/retroinfer/ops/cluster_assign.cuh"
#include "lab/policies/retroinfer/ops/cluster_build_cuda.h"
#include "lab/policies/retroinfer/ops/cluster_centroids.cuh"
#include "lab/policies/retroinfer/ops/cluster_problem.cuh"
#include "lab/policies/retroinfer/ops/cluster_rows.cuh"

namespace litecache::lab::ops::cuda {
namespace {

using namespace clusters;

// Clusters with more tokens are ordered by a pass over all tokens.
constexpr int32_t kFewTokens = 256;

// Orders the tokens within their clusters; writes centroids, sums of the values and sizes to the
// index. One block per cluster.
__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ Problem p) {
  __shared__ int32_t of_warps[kWarps];
  __shared__ int32_t tokens[kFewTokens];
  extern __shared__ double sums[];  // [kWarps][2 * d]
  const auto list = static_cast<int32_t>(blockIdx.y);
  const Scratch s = p.Of(list);
  int32_t* sorted = p.work.order + int64_t{list} * p.work.count;
  const int32_t c = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t begin = s.offsets[c], size = s.offsets[c + 1] - begin;
  if (size <= kFewTokens) {
    for (int32_t i = threadIdx.x; i < size; i += kThreads) tokens[i] = s.order[begin + i];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < size; i += kThreads) {
      int32_t rank = 0;
      for (int32_t j = 0; j < size; ++j) rank += tokens[j] < tokens[i];
      sorted[begin + rank] = tokens[i];
    }
  } else {
    int32_t before = begin;
    for (int32_t first = 0; first < p.work.count; first += kThreads) {
      const int32_t t = first + static_cast<int32_t>(threadIdx.x);
      const bool mine = t < p.work.count && s.assignment[t] == c;
      const unsigned all = __ballot_sync(kFullMask, mine);
      if (lane == 0) of_warps[warp] = __popc(all);
      __syncthreads();
      int32_t at = before + __popc(all & ((1u << lane) - 1));
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) at += of_warps[w];
        before += of_warps[w];
      }
      if (mine) sorted[at] = t;
      __syncthreads();
    }
  }
  const RowFormat& format = p.work.index.format;
  const auto token_of = [&](int32_t j) {
    return size <= kFewTokens ? tokens[j] : s.order[begin + j];
  };
  // Warps take rows in turn.
  double* own = sums + warp * 2 * p.d;
  if (format.encoding == RowEncoding::kBF16 && p.d % 4 == 0) {
    for (int32_t first = 0; first < p.d / 4; first += 32) {
      const int32_t unit = first + lane;  // of eight elements
      if (unit >= p.d / 4) break;
      double sum[8] = {};
#pragma unroll 4
      for (int32_t j = warp; j < size; j += kWarps) {
        AddEight(reinterpret_cast<const uint4*>(TokenRow(p, s, list, token_of(j)))[unit], sum);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) own[unit * 8 + k] = sum[k];
    }
  } else {
    for (int32_t i = lane; i < 2 * p.d; i += 32) {
      double sum = 0;
      for (int32_t j = warp; j < size; j += kWarps) {
        sum += Element(format, TokenRow(p, s, list, token_of(j)), i);
      }
      own[i] = sum;
    }
  }
  __syncthreads();
  const int32_t cluster = p.work.first_cluster + c;
  std::byte* row = RowAt(p.work.index, p.work.first_list + list, cluster, p.row_bytes);
  for (int32_t i = threadIdx.x; i < 2 * p.d; i += kThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * 2 * p.d + i];
    float value = static_cast<float>(sum);
    if (i < p.d) {
      value = size > 0 ? static_cast<float>(sum / size)
                       : s.centroids[int64_t{c} * p.d + i] + MeanOf(p, s, i);
    }
    StoreValue(row, format.encoding, i, value);
  }
  if (threadIdx.x == 0) {
    const int32_t page = cluster / p.work.index.page_rows;
    auto* sizes = reinterpret_cast<int32_t*>(
        p.work.index.pages[int64_t{page} * p.work.index.lists + p.work.first_list + list] +
        int64_t{p.work.index.page_rows} * p.row_bytes);
    sizes[cluster - page * p.work.index.page_rows] = size;
    p.work.begins[int64_t{list} * p.work.clusters + c] = p.work.begin + begin;
  }
}

template <int kDim>
struct Passes {
  static void Assign(CUstream_st* stream, const Problem& p, int32_t segments, int32_t tokens,
                     int32_t clusters) {
    constexpr int kPoints = AssignShape<kDim>::kPoints;
    const dim3 grid(static_cast<unsigned>((tokens + kPoints - 1) / kPoints),
                    static_cast<unsigned>(segments), static_cast<unsigned>(p.work.lists));
    AssignKernel<kDim><<<grid, kThreads, 0, stream>>>(p, tokens, clusters);
    LC_CUDA_LAUNCHED();
  }
  static void Move(CUstream_st* stream, const Problem& p, dim3 by_cluster) {
    MoveCentroidsKernel<kDim><<<by_cluster, kThreads, 0, stream>>>(p);
    LC_CUDA_LAUNCHED();
  }
};

// call(Passes<width of the padded keys>).
template <class Call>
void WithPasses(const Problem& p, const Call& call) {
  if (p.padded == 64) return call(Passes<64>());
  if (p.padded == 128) return call(Passes<128>());
  return call(Passes<256>());
}

Problem Checked(const ClusterBuildWork& work) {
  const RowFormat& format = work.store.format;
  LC_CHECK(!format.quantized() && format.head_dim >= 1 && format.head_dim <= 256, "head_dim {}",
           format.head_dim);
  LC_CHECK(work.source.format.encoding == format.encoding &&
           work.index.format.encoding == format.encoding);
  LC_CHECK(work.clusters >= 1 && work.clusters <= work.count && work.segments >= 1 &&
               work.clusters % work.segments == 0 && work.iterations >= 1,
           "{} clusters of {} tokens in {} segments", work.clusters, work.count, work.segments);
  LC_CHECK(work.lists >= 1 && work.lists <= 65535 && work.segments <= 65535);
  return MakeProblem(work);
}

void Load(CUstream_st* stream, const Problem& p) {
  LoadRowsKernel<<<kLinkBlocks, kLinkThreads, 0, stream>>>(p);
  LC_CUDA_LAUNCHED();
}

}  // namespace

size_t ClusterBuildScratchBytes(const RowFormat& format, int64_t count, int64_t clusters,
                                bool load) {
  ClusterBuildWork work;
  work.store.format = format;
  work.count = static_cast<int32_t>(count);
  work.clusters = static_cast<int32_t>(clusters);
  work.load = load;
  return static_cast<size_t>(MakeProblem(work).list_bytes);
}

void MakeClusters(Stream& stream, const ClusterBuildWork& work) {
  const Problem p = Checked(work);
  CUstream_st* handle = AsCuda(stream).handle();
  const auto lists = static_cast<unsigned>(work.lists);
  const auto over = [&](int64_t items, int64_t a_block, int64_t most) {
    return dim3(
        static_cast<unsigned>(std::clamp<int64_t>((items + a_block - 1) / a_block, 1, most)),
        lists);
  };
  if (work.load) Load(handle, p);
  LC_CUDA(cudaMemset2DAsync(p.Of(0).sums, static_cast<size_t>(p.list_bytes), 0,
                            sizeof(double) * static_cast<size_t>(p.d), lists, handle));
  SumKeysKernel<<<over(work.count, 16 * kWarps, 256), kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  CentreKernel<<<over(work.count, 8 * kWarps, 1024), kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  const dim3 by_cluster = over(work.clusters, kWarps, work.clusters);
  BeginCentroidsKernel<<<by_cluster, kThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
  WithPasses(p, [&](auto passes) {
    const auto assign = [&](int32_t segments, int32_t tokens, int32_t clusters) {
      passes.Assign(handle, p, segments, tokens, clusters);
      const dim3 blocks(static_cast<unsigned>((tokens + kPlacedTokens - 1) / kPlacedTokens),
                        static_cast<unsigned>(segments), lists);
      PlaceKernel<<<blocks, kThreads, 0, handle>>>(p, tokens, clusters);
      LC_CUDA_LAUNCHED();
    };
    for (int32_t i = 0; i + 1 < work.iterations; ++i) {
      assign(work.segments, p.segment_tokens, p.segment_clusters);
      passes.Move(handle, p, by_cluster);
    }
    assign(1, work.count, work.clusters);
  });
  const size_t sums = sizeof(double) * kWarps * 2 * static_cast<size_t>(p.d);
  FinishKernel<<<dim3(static_cast<unsigned>(work.clusters), lists), kThreads, sums, handle>>>(p);
  LC_CUDA_LAUNCHED();
}

void StoreClusters(Stream& stream, const ClusterBuildWork& work, const StoreExtent& extent,
                   int32_t sms) {
  const Problem p = Checked(work);
  LC_CHECK(extent.from <= work.begin && work.begin + work.count <= extent.to);
  LC_CHECK(!work.load || (extent.from == work.begin && work.begin + work.count == extent.to),
           "rows that are not loaded");
  StoreRowsKernel<<<static_cast<unsigned>(sms), kLinkThreads, 0, AsCuda(stream).handle()>>>(p,
                                                                                            extent);
  LC_CUDA_LAUNCHED();
}

void RestoreTokenOrder(Stream& stream, const ClusterBuildWork& work) {
  LC_CHECK(work.load);
  const Problem p = Checked(work);
  CUstream_st* handle = AsCuda(stream).handle();
  Load(handle, p);
  RestoreRowsKernel<<<kLinkBlocks, kLinkThreads, 0, handle>>>(p);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
