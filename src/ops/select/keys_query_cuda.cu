#include "ops/common/vectors.cuh"
#include "ops/select/keys_query.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kInFlight = 64;  // factors that a thread loads at once
constexpr int32_t kFloatsALine = 128 / sizeof(float);

template <int kMost>
struct QueryShared {
  float4 query[kMost / 4];
  float parts[kChainThreads];
  uint32_t bytes[kChainWords];
  float warp_largest[kChainWarps];
  int32_t warp_sums[kChainWarps];
  int32_t products[kKeysBlock];  // of the first block's keys
};

// A lane's key of the first block: its scale, and of its words those of the warp, every
// kChainWarps-th.
template <int kMost>
struct FirstKeys {
  static constexpr int kWords = kMost / 8 / kChainWarps;  // in 4 bits
  uint32_t words[kWords] = {};
  float scale = 0;
};

template <int kMost>
__device__ __forceinline__ FirstKeys<kMost> LoadFirstKeys(const LiteCacheLayer& layer,
                                                          const SelectTarget& target,
                                                          const KeysLayout& layout, int32_t warp,
                                                          int32_t lane) {
  FirstKeys<kMost> keys;
  const int32_t list = __ldcg(layer.metadata.list_of_head + target.head);
  const auto* block =
      reinterpret_cast<const uint32_t*>(PageOf(*target.sequence, layer.metadata, list, 0));
#pragma unroll
  for (int i = 0; i < FirstKeys<kMost>::kWords; ++i) {
    const int32_t w = warp + i * kChainWarps;
    if (w < layout.words) keys.words[i] = block[w * kKeysBlock + lane];
  }
  keys.scale = __half2float(KeyScalesOf(layout, block)[lane]);
  return keys;
}

// The warp's part of the lane's product.
template <int kMost>
__device__ __forceinline__ int32_t MultiplyFirstKeys(const FirstKeys<kMost>& keys,
                                                     const KeysLayout& layout,
                                                     const uint32_t* bytes, int32_t warp) {
  int32_t product = 0;
  const uint32_t mask = layout.bits == 4 ? 0x0f0f0f0f : 0x03030303;
#pragma unroll
  for (int i = 0; i < FirstKeys<kMost>::kWords; ++i) {
    const int32_t w = warp + i * kChainWarps;
    for (int32_t part = 0; w < layout.words && part < layout.parts(); ++part) {
      product = __dp4a(static_cast<int32_t>(keys.words[i] >> (part * layout.bits) & mask),
                       static_cast<int32_t>(bytes[w * layout.parts() + part]), product);
    }
  }
  return product;
}

// What a head beyond the group has: zeros.
__device__ __forceinline__ void ClearQuery(const KeysQueries& queries, int32_t j, int32_t thread) {
  if (thread < kChainWords) queries.bytes[j * kChainWords + thread] = 0;
  if (thread == 0) {
    queries.factors[j] = queries.first[j] = 0;
    queries.sums[j] = 0;
  }
}

// How threads divide the channels of a rotated query, and the sums over those of the query.
struct Columns {
  int32_t columns, parts;  // parts of a sum
  int32_t column, part;    // the thread's
  int32_t begin, end;      // channels of the query in the thread's part

  __device__ __forceinline__ Columns(int32_t d, int32_t thread)
      : columns(d <= 64    ? 64
                : d <= 128 ? 128
                           : 256),
        parts(kChainThreads / columns),
        column(thread % columns),
        part(thread / columns) {
    const int32_t a_part = (d + 4 * parts - 1) / (4 * parts) * 4;
    begin = part * a_part;
    end = min(d, (part + 1) * a_part);
  }
};

// The thread's part of channel `own` of the rotated query.
template <int kMost>
__device__ __forceinline__ float RotatePart(const QueryShared<kMost>& shared, const Columns& c,
                                            const float* rotation, int32_t stride, int32_t own) {
  float x = 0;
  for (int32_t c0 = c.begin; c0 < c.end; c0 += kInFlight) {
    float factor[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      factor[i] = c0 + i < c.end ? __ldg(rotation + (c0 + i) * stride + own) : 0;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; i += 4) {
      const float4 q = shared.query[(c0 + i) / 4];
      x = fmaf(factor[i], q.x, x);
      x = fmaf(factor[i + 1], q.y, x);
      x = fmaf(factor[i + 2], q.z, x);
      x = fmaf(factor[i + 3], q.w, x);
    }
  }
  return x;
}

// Rotates the query in shared memory: the thread's channels, zeros in threads that have none.
// Returns the largest magnitude in the block, infinity if a channel is not finite. Called by the
// whole block.
template <int kMost, int kTurns>
__device__ __forceinline__ float Rotate(QueryShared<kMost>& shared, const Columns& c,
                                        const float* rotation, int32_t stride, int32_t d,
                                        int32_t thread, float (&rotated)[kTurns]) {
  float most_of_thread = 0;
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t own = c.column + turn * kChainThreads;
    float x = own < d ? RotatePart(shared, c, rotation, stride, own) : 0;
    if (c.parts > 1) {
      shared.parts[thread] = x;
      __syncthreads();
      for (int32_t p = 1; c.part == 0 && p < c.parts; ++p) {
        x += shared.parts[p * c.columns + c.column];
      }
      if (c.part > 0) x = 0;
    }
    (turn == 0 ? rotated[0] : rotated[kTurns - 1]) = x;
    most_of_thread = fmaxf(most_of_thread, isfinite(x) ? fabsf(x) : INFINITY);
  }
  const float of_warp = WarpMax(most_of_thread);
  if (thread % 32 == 0) shared.warp_largest[thread / 32] = of_warp;
  __syncthreads();
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChainWarps; ++i) largest = fmaxf(largest, shared.warp_largest[i]);
  return largest;
}

// Writes the rotated query's bytes, of which the largest is 127, and the warps' sums of them to
// shared memory; zeros if it does not count. Called by the whole block.
template <int kMost, int kTurns>
__device__ __forceinline__ void RoundToBytes(QueryShared<kMost>& shared,
                                             const float (&rotated)[kTurns], bool counts,
                                             float largest, int32_t thread) {
  int32_t bytes = 0;  // their sum
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t byte = counts ? __float2int_rn(rotated[turn] * (127 / largest)) : 0;
    reinterpret_cast<int8_t*>(shared.bytes)[turn * kChainThreads + thread] =
        static_cast<int8_t>(byte);
    bytes += byte;
  }
  if (thread < kChainWords - kMost / 4) shared.bytes[kMost / 4 + thread] = 0;
  const int32_t sum_of_warp = __reduce_add_sync(kFullMask, bytes);
  if (thread % 32 == 0) shared.warp_sums[thread / 32] = sum_of_warp;
  __syncthreads();
}

// A block rotates a query head; a thread has a channel, or a part of its sum, or two channels:
// beside products, which keep the memory busy, a load takes microseconds, so that all of them are
// in flight at once. kMost: of head_dim.
template <int kMost>
__global__ void __launch_bounds__(kChainThreads, kMost <= kChainThreads ? 3 : 1)
    KeysQueryKernel(const __grid_constant__ StepView step,
                    const __grid_constant__ LiteCacheShape shape,
                    const __grid_constant__ LiteCacheLayer layer,
                    const __grid_constant__ SelectSource source,
                    const __grid_constant__ Chain chain, const KeysLayout layout,
                    const float* const rotation) {
  constexpr int kTurns = kMost / kChainThreads;  // of a thread, each for a channel
  __shared__ QueryShared<kMost> shared;
  const auto pair = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, warp = thread / 32;
  const int32_t d = shape.head_dim, group = shape.group;
  const int32_t blocks = static_cast<int32_t>(gridDim.x), first = static_cast<int32_t>(blockIdx.x);
  // The rotation is brought while it is determined whether it is needed.
  for (int32_t i = first * kChainThreads + thread; i * kFloatsALine < d * layout.stride;
       i += blocks * kChainThreads) {
    PrefetchToL2(rotation + i * kFloatsALine);
  }
  WaitForKernelBefore();
  LetNextKernelStart();
  SelectTarget target;
  if (!BeginPair(step, shape, layer, source, chain, pair, first, blocks, &target)) return;
  const KeysQueries queries = KeysQueriesOf(chain, shape, pair);
  // Finite for any query: a product with a key, and each of the two with means, stays below a
  // quarter of the largest score.
  const float most = kLargestScore / (4 * 65504.0f * 127 * static_cast<float>(layout.offset() * d));
  // The first block may not be whole, but is if there are tokens behind it.
  const bool has_first = target.end > kKeysBlock;
  FirstKeys<kMost> keys;
  if (has_first) keys = LoadFirstKeys<kMost>(layer, target, layout, warp, lane);
  const Columns columns(d, thread);
  const int32_t padded = (group + 7) / 8 * 8;
  for (int32_t j = first; j < padded; j += blocks) {
    if (j >= group) {
      ClearQuery(queries, j, thread);
      continue;
    }
    __syncthreads();  // all have read the previous head's
    for (int32_t i = thread; i < kMost; i += kChainThreads) {
      reinterpret_cast<float*>(shared.query)[i] = i < d ? target.q[j * d + i] : 0;
    }
    if (thread < kKeysBlock) shared.products[thread] = 0;
    __syncthreads();
    float rotated[kTurns] = {};
    const float largest = Rotate(shared, columns, rotation, layout.stride, d, thread, rotated);
    const bool counts = largest >= 1e-30f && largest < INFINITY;
    RoundToBytes(shared, rotated, counts, largest, thread);
    if (thread < kChainWords) queries.bytes[j * kChainWords + thread] = shared.bytes[thread];
    if (has_first) {
      atomicAdd(&shared.products[lane], MultiplyFirstKeys(keys, layout, shared.bytes, warp));
      __syncthreads();
    }
    if (warp != 0) continue;
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kChainWarps; ++i) sum += shared.warp_sums[i];
    sum *= layout.offset();
    const float factor = counts ? fminf(largest / 127 * source.scale * kLog2E, most) : 0;
    const float product = static_cast<float>(2 * shared.products[lane] - sum) * factor * keys.scale;
    const float mean = WarpSum(product) / kKeysBlock;
    if (lane == 0) {
      queries.factors[j] = factor;
      queries.sums[j] = sum;
      queries.first[j] = has_first ? mean : 0;
    }
  }
}

}  // namespace

void BeginKeysSelect(CudaStream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const SelectSource& source, const Chain& chain,
                     const KeysLayout& layout, const float* rotation) {
  LC_CHECK(shape.head_dim <= kMaxKeysDim, "head_dim {}", shape.head_dim);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(ChainGroup(shape.group), 16)),
                  static_cast<unsigned>(step.capacity * shape.kv_heads));
  const auto kernel = shape.head_dim <= kChainThreads ? KeysQueryKernel<kChainThreads>
                                                      : KeysQueryKernel<kMaxKeysDim>;
  LaunchOverlapping(stream, kernel, grid, kChainThreads, 0, step, shape, layer, source, chain,
                    layout, rotation);
}

}  // namespace litecache::ops::cuda
