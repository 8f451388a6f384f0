#include <cuda_bf16.h>

#include <algorithm>

#include "lab/policies/pqcache/ops/pqcache_cuda.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kMaxDim = 256;

// A head's centroids, [subspaces][clusters][part_dim].
__device__ __forceinline__ const float* CodebookOf(const StepSequence& s, const PqLayer& layer,
                                                   int32_t head) {
  const int32_t list = layer.layer * layer.kv_heads + head;
  const int32_t page = list / layer.codebooks_a_page;
  const int64_t floats = int64_t{layer.head_dim} << layer.format.bits;
  return reinterpret_cast<const float*>(s.pages[kPqCodebooks][page]) +
         (list - page * layer.codebooks_a_page) * floats;
}

__device__ __forceinline__ uint8_t* CodeOf(const StepSequence& s, const PqLayer& layer,
                                           int32_t head, int32_t token, int32_t part) {
  constexpr auto kBlock = static_cast<int32_t>(PqFormat::kBlockTokens);
  const int32_t list = layer.codes.list_of_head[head];
  const int32_t page = token / layer.codes.page_rows;
  const int32_t in_page = token - page * layer.codes.page_rows;
  const auto subspaces = static_cast<int32_t>(layer.format.subspaces);
  return reinterpret_cast<uint8_t*>(PageOf(s, layer.codes, list, page)) +
         (int64_t{in_page / kBlock} * subspaces + part) * kBlock + in_page % kBlock;
}

// a.b, added in order. Both are aligned to 16 bytes if dim is a multiple of 4.
__device__ __forceinline__ float Product(const float* a, const float* b, int32_t dim) {
  float sum = 0;
  if (dim % 4 != 0) {
    for (int32_t c = 0; c < dim; ++c) sum = fmaf(a[c], b[c], sum);
    return sum;
  }
#pragma unroll 8
  for (int32_t c = 0; c < dim; c += 4) {
    const auto x = *reinterpret_cast<const float4*>(a + c);
    const auto y = *reinterpret_cast<const float4*>(b + c);
    sum = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
  }
  return sum;
}

// A table [subspaces][clusters] of products with the centroids for every query head; a token's
// product is a sum of entries. The tables of kHeads heads are interleaved, so that one load serves
// them.
template <int kHeads>
struct CodeProducts {
  static constexpr int kAtOnce = 4;
  PqLayer layer;
  TableAccess codes;

  size_t SharedBytes(int64_t group, int64_t) const {
    const auto padded = static_cast<size_t>((group + kHeads - 1) / kHeads * kHeads);
    return padded * static_cast<size_t>(layer.format.subspaces * layer.format.clusters()) *
           sizeof(float);
  }

  __device__ void Prepare(const ScoreJob& job, float* tables) const {
    const auto subspaces = static_cast<int32_t>(layer.format.subspaces);
    const int32_t clusters = 1 << layer.format.bits, d = layer.head_dim, dim = d / subspaces;
    const int32_t padded = (layer.group + kHeads - 1) / kHeads * kHeads;
    const int32_t entries = subspaces * clusters;
    const float* centroids = CodebookOf(*job.target.sequence, layer, job.target.head);
    for (int32_t i = threadIdx.x; i < padded * entries; i += kTeamThreads) {
      // The heads of one entry are adjacent: they read the same centroid.
      const int32_t j0 = i / (entries * kHeads), rest = i - j0 * entries * kHeads;
      const int32_t entry = rest / kHeads, j = j0 * kHeads + rest % kHeads;
      float sum = 0;
      if (j < layer.group) {
        const float* centroid = centroids + int64_t{entry} * dim;
        sum = Product(job.target.q + j * d + entry / clusters * dim, centroid, dim);
      }
      tables[i] = sum;
    }
  }

  __device__ void operator()(const ScoreJob& job, const float* tables, int32_t t,
                             int32_t first_head, float (&s)[kHeads]) const {
    const auto subspaces = static_cast<int32_t>(layer.format.subspaces);
    const int32_t clusters = 1 << layer.format.bits;
    // Part 0 of the lane's token; t is the first of a block.
    const RowList list =
        codes.List(*job.target.sequence, layer.codes.list_of_head[job.target.head]);
    const int32_t page = list.per_page.Quotient(t);
    const auto* of_lane = reinterpret_cast<const uint8_t*>(list.pages[int64_t{page} * list.lists]) +
                          int64_t{t - page * list.page_rows} * subspaces + threadIdx.x % 32;
    const float* own = tables + first_head * subspaces * clusters;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) s[j] = 0;
    for (int32_t part = 0; part < subspaces; ++part) {
      // The values after the last token are arbitrary.
      const int32_t code = __ldg(of_lane + part * PqFormat::kBlockTokens) & (clusters - 1);
      const float* entry = own + (part * clusters + code) * kHeads;
#pragma unroll
      for (int j = 0; j < kHeads; ++j) s[j] += entry[j];
    }
  }
};

constexpr int kEncodeThreads = 128;
constexpr int kEncodeWarps = kEncodeThreads / 32;

// Blocks stride over tokens; one warp per part, whose lanes process centroids in turn.
__global__ void __launch_bounds__(kEncodeThreads)
    PqEncodeKernel(const __grid_constant__ StepView step, const __grid_constant__ PqLayer layer,
                   bool fresh) {
  __shared__ __align__(16) float key[kMaxDim];
  const int32_t sequence = blockIdx.z, head = blockIdx.y;
  if (sequence >= *step.count) return;
  const PqSequence& own = layer.sequences[sequence];
  if (own.window == 0) return;
  const StepSequence& s = step.sequences[sequence];
  const RowTable& table = fresh ? layer.rows : layer.store;
  const int32_t first = fresh ? s.past : s.stored, end = fresh ? s.past + 1 : s.past;
  const auto subspaces = static_cast<int32_t>(layer.format.subspaces);
  const int32_t clusters = 1 << layer.format.bits, d = layer.head_dim, dim = d / subspaces;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* centroids = CodebookOf(s, layer, head);
  const bool is_f32 = layer.store.format.encoding == RowEncoding::kF32;
  for (int32_t t = first + static_cast<int32_t>(blockIdx.x); t < end;
       t += static_cast<int32_t>(gridDim.x)) {
    __syncthreads();
    const std::byte* row = RowOf(s, table, table.list_of_head[head], fresh ? own.new_row : t);
    for (int32_t c = threadIdx.x; c < d; c += kEncodeThreads) {
      key[c] = is_f32 ? reinterpret_cast<const float*>(row)[c]
                      : __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[c]);
    }
    __syncthreads();
    for (int32_t part = warp; part < subspaces; part += kEncodeWarps) {
      // The largest product minus half the centroid's squared norm; ties go to the lower index.
      float best = -INFINITY;
      int32_t code = clusters;
      for (int32_t j = lane; j < clusters; j += 32) {
        const float* centroid = centroids + (int64_t{part} * clusters + j) * dim;
        const float value =
            Product(key + part * dim, centroid, dim) - 0.5f * Product(centroid, centroid, dim);
        if (value > best || code == clusters) {
          best = value;
          code = j;
        }
      }
      for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(kFullMask, best, offset);
        const int32_t its = __shfl_xor_sync(kFullMask, code, offset);
        if (other > best || (other == best && its < code)) {
          best = other;
          code = its;
        }
      }
      if (lane == 0) {
        *CodeOf(s, layer, head, t, part) = static_cast<uint8_t>(min(code, clusters - 1));
      }
    }
  }
}

void CheckLayer(const PqLayer& layer) {
  LC_CHECK(layer.head_dim >= 1 && layer.head_dim <= kMaxDim &&
               layer.head_dim % layer.format.subspaces == 0,
           "head_dim {}, {} subspaces", layer.head_dim, layer.format.subspaces);
  LC_CHECK(layer.format.bits >= 1 && layer.format.bits <= 8, "{} bits", layer.format.bits);
  LC_CHECK(layer.codes.page_rows % PqFormat::kBlockTokens == 0, "pages of {} tokens",
           layer.codes.page_rows);
}

}  // namespace

void PqEncode(Stream& stream, const StepView& step, const PqLayer& layer, PqKeys keys) {
  CheckLayer(layer);
  if (step.capacity == 0) return;
  const bool fresh = keys == PqKeys::kNew;
  const dim3 grid(fresh ? 1 : 32, static_cast<unsigned>(layer.kv_heads),
                  static_cast<unsigned>(step.capacity));
  PqEncodeKernel<<<grid, kEncodeThreads, 0, AsCuda(stream).handle()>>>(step, layer, fresh);
  LC_CUDA_LAUNCHED();
}

void PqSelect(Stream& stream, const StepView& step, const PqLayer& layer, const MatrixView& q,
              float scale, void* scratch) {
  CheckLayer(layer);
  if (step.capacity == 0) return;
  LiteCacheShape shape;
  shape.kv_heads = layer.kv_heads;
  shape.group = layer.group;
  shape.head_dim = layer.head_dim;
  shape.max_rows = layer.max_rows;
  LiteCacheLayer lists;
  lists.selected = layer.selected;
  lists.selected_count = layer.selected_count;
  LaunchSoftmaxSelect(
      stream, step, shape, lists, {.q = &q, .scale = scale}, scratch,
      [&](auto heads) {
        return CodeProducts<decltype(heads)::value>{layer, TableAccess(layer.codes)};
      },
      layer.ranges);
}

}  // namespace litecache::lab::ops::cuda
