#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "lab/policies/infinigen/ops/infinigen_cuda.h"
#include "ops/rows/paged_rows.cuh"
#include "ops/slots/litecache_pair.cuh"

namespace litecache::lab::ops::cuda {
namespace {

constexpr int kTile = 16;  // keys at a time
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeysAWarp = kTile / kWarps;
constexpr int kMaxDim = 256;

__device__ __forceinline__ const int32_t* ChannelsOf(const StepSequence& s,
                                                     const PartialLayer& layer, int32_t rank,
                                                     int32_t head) {
  return reinterpret_cast<const int32_t*>(s.pages[kChannels][0]) +
         (int64_t{layer.index} * layer.kv_heads + head) * rank;
}

struct EncodeProblem {
  StepView step;
  PartialLayer layer;
  TableAccess source;
  int32_t kind = 0;  // RowRange's
  int32_t rank = 0, pairs = 0;
};

__device__ __forceinline__ uint32_t Bf16Bits(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// One lane per component, kKeysAWarp keys per warp; terms are added in the CPU's order. Shared
// memory: keys [kTile][head_dim], then a chunk of 32 components of the basis [head_dim][32].
__global__ void __launch_bounds__(kThreads)
    EncodePartialKernel(const __grid_constant__ EncodeProblem p) {
  extern __shared__ float dynamic[];
  const int32_t sequence = blockIdx.z, head = blockIdx.y;
  if (sequence >= *p.step.count) return;
  const StepSequence& s = p.step.sequences[sequence];
  const int32_t list = p.layer.keys.list_of_head[head];
  const int32_t source_list = p.source.table.list_of_head[head];
  if (list < 0 || source_list < 0) return;
  const bool fresh = p.kind == RowRange::kNew;
  const int32_t first = fresh ? s.past : s.stored, end = fresh ? s.past + s.rows : s.past;
  const RowList rows = p.source.List(s, source_list);
  const int32_t d = p.layer.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t* channels = ChannelsOf(s, p.layer, p.rank, head);
  const float* skew = p.layer.skew + int64_t{head} * d * p.layer.width;
  float* keys = dynamic;
  float* basis = dynamic + kTile * d;
  const bool is_f32 = p.source.table.format.encoding == RowEncoding::kF32;
  const int32_t chunks = (2 * p.pairs + 31) / 32;
  bool has_basis = false;
  for (int32_t begin = first + static_cast<int32_t>(blockIdx.x) * kTile; begin < end;
       begin += static_cast<int32_t>(gridDim.x) * kTile) {
    const int32_t count = min(kTile, end - begin);
    __syncthreads();
    for (int32_t i = warp; i < count; i += kWarps) {
      const std::byte* row = rows.Row(p.source.RowOf(begin + i));
      for (int32_t c = 2 * lane; c < d; c += 64) {
        float2 value;
        if (is_f32) {
          value = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(row) + c);
        } else {
          value = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(
              reinterpret_cast<const __nv_bfloat16*>(row) + c));
        }
        keys[i * d + c] = value.x;
        keys[i * d + c + 1] = value.y;
      }
    }
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      if (!has_basis || chunks > 1) {
        __syncthreads();  // the last chunk has been read
        for (int32_t i = threadIdx.x; i < d * 32; i += kThreads) {
          const int32_t c = i / 32, r = chunk * 32 + i % 32;
          basis[i] = r < p.rank ? skew[int64_t{c} * p.layer.width + channels[r]] : 0.0f;
        }
        has_basis = true;
      }
      __syncthreads();
      float sum[kKeysAWarp] = {};
      for (int32_t c = 0; c < d; ++c) {
        const float factor = basis[c * 32 + lane];
#pragma unroll
        for (int t = 0; t < kKeysAWarp; ++t) {
          sum[t] = fmaf(factor, keys[(warp * kKeysAWarp + t) * d + c], sum[t]);
        }
      }
      const int32_t component = chunk * 32 + lane;
#pragma unroll
      for (int t = 0; t < kKeysAWarp; ++t) {
        const float partner = __shfl_down_sync(kFullMask, sum[t], 1);
        const int32_t i = warp * kKeysAWarp + t;
        if (component >= 2 * p.pairs || lane % 2 != 0 || i >= count) continue;
        const int32_t position = begin + i, page = position / p.layer.keys.page_rows;
        const int32_t in_page = position - page * p.layer.keys.page_rows;
        auto* words = reinterpret_cast<uint32_t*>(PageOf(s, p.layer.keys, list, page));
        words[(int64_t{in_page / 32} * p.pairs + component / 2) * 32 + in_page % 32] =
            Bf16Bits(sum[t]) | Bf16Bits(partner) << 16;
      }
    }
  }
}

constexpr int kQueryThreads = 128;

// One block per pair.
__global__ void __launch_bounds__(kQueryThreads)
    ProjectQueriesKernel(const __grid_constant__ StepView step,
                         const __grid_constant__ PartialLayer layer, int32_t rank, int32_t pairs,
                         const float* q, int64_t q_stride,
                         const __grid_constant__ Speculation work) {
  extern __shared__ float query[];  // [group][head_dim]
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t d = layer.head_dim, pair = sequence * layer.kv_heads + head;
  const float* own = q + s.first_row * q_stride + int64_t{head} * layer.group * d;
  for (int32_t i = threadIdx.x; i < layer.group * d; i += kQueryThreads) query[i] = own[i];
  if (threadIdx.x == 0) {
    work.above[pair] = 0;
    if (head == 0) work.ranges[sequence] = {.begin = 0, .end = s.past, .k = 1};
  }
  __syncthreads();
  const int32_t* channels = ChannelsOf(s, layer, rank, head);
  const float* skew = layer.skew + int64_t{head} * d * layer.width;
  const int32_t components = 2 * pairs;
  float* out = work.components + int64_t{pair} * layer.group * components;
  for (int32_t i = threadIdx.x; i < layer.group * components; i += kQueryThreads) {
    const int32_t j = i / components, r = i - j * components;
    float sum = 0;
    if (r < rank) {
      const float* column = skew + channels[r];
#pragma unroll 8
      for (int32_t c = 0; c < d; ++c) {
        sum = fmaf(column[int64_t{c} * layer.width], query[j * d + c], sum);
      }
    }
    out[i] = sum;
  }
}

void CheckLayer(const PartialLayer& layer) {
  LC_CHECK(layer.head_dim >= 2 && layer.head_dim % 2 == 0 && layer.head_dim <= kMaxDim,
           "head_dim {}", layer.head_dim);
  LC_CHECK(layer.format.rank >= 1 && layer.format.rank <= layer.head_dim, "rank {}",
           layer.format.rank);
  LC_CHECK(layer.keys.page_rows % ProjectionFormat::kBlockTokens == 0, "pages of {} tokens",
           layer.keys.page_rows);
}

}  // namespace

void EncodePartialKeys(Stream& stream, const StepView& step, const PartialLayer& layer,
                       const RowTable& source, const RowRange& range) {
  CheckLayer(layer);
  LC_CHECK(!source.format.quantized() && source.format.head_dim == layer.head_dim);
  LC_CHECK(range.kind == RowRange::kNew || range.kind == RowRange::kRing);
  if (step.capacity == 0) return;
  const EncodeProblem problem{step,
                              layer,
                              TableAccess(source),
                              range.kind,
                              static_cast<int32_t>(layer.format.rank),
                              static_cast<int32_t>(layer.format.pairs())};
  // Blocks stride over the tokens: this estimate of their number is not a limit.
  const int64_t tokens = range.kind == RowRange::kNew ? step.max_rows : step.max_context;
  const auto tiles = std::clamp<int64_t>((tokens + kTile - 1) / kTile, 1, 128);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(layer.kv_heads),
                  static_cast<unsigned>(step.capacity));
  const size_t shared = static_cast<size_t>((kTile + 32) * layer.head_dim) * sizeof(float);
  EncodePartialKernel<<<grid, kThreads, shared, AsCuda(stream).handle()>>>(problem);
  LC_CUDA_LAUNCHED();
}

void ProjectQueries(Stream& stream, const StepView& step, const PartialLayer& layer,
                    const MatrixView& q, const Speculation& work) {
  CheckLayer(layer);
  LC_CHECK(q.dtype == DType::kF32 &&
           q.cols == int64_t{layer.kv_heads} * layer.group * layer.head_dim);
  const size_t shared = static_cast<size_t>(layer.group * layer.head_dim) * sizeof(float);
  LC_CHECK(shared <= size_t{48} << 10, "a group of {} query heads of {} values", layer.group,
           layer.head_dim);
  if (step.capacity == 0) return;
  const dim3 grid(static_cast<unsigned>(layer.kv_heads), static_cast<unsigned>(step.capacity));
  ProjectQueriesKernel<<<grid, kQueryThreads, shared, AsCuda(stream).handle()>>>(
      step, layer, static_cast<int32_t>(layer.format.rank),
      static_cast<int32_t>(layer.format.pairs()), q.Row<const float>(0), q.stride, work);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::lab::ops::cuda
