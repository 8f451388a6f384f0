#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/common/overlap.cuh"
#include "ops/reuse/qsac_lookup_cuda.h"
#include "ops/rows/encode_rows.cuh"
#include "ops/slots/litecache_layer_cuda.h"
#include "ops/transfer/move_rows.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kMaxGroup = 256;

// As on the CPU (ops/reuse/qsac_lookup_cpu.cc): squares in this range are accurate.
constexpr float kSmallestSquare = 1e-24f, kLargestSquare = 1e37f;

__device__ bool Trusted(float square) {
  return square >= kSmallestSquare && square <= kLargestSquare;
}

// For vectors of any finite size: they are scaled to 1 before squaring.
__device__ double ScaledCosine(const float* q, const float* label, int32_t n) {
  const int lane = threadIdx.x % 32;
  float q_size = 0, label_size = 0;
  for (int32_t i = lane; i < n; i += 32) {
    q_size = fmaxf(q_size, fabsf(q[i]));
    label_size = fmaxf(label_size, fabsf(label[i]));
  }
  q_size = WarpMax(q_size);
  label_size = WarpMax(label_size);
  if (q_size == 0 || label_size == 0) return 0;
  double dot = 0, qq = 0, ll = 0;
  for (int32_t i = lane; i < n; i += 32) {
    const double x = static_cast<double>(q[i]) / q_size;
    const double y = static_cast<double>(label[i]) / label_size;
    dot = fma(x, y, dot);
    qq = fma(x, x, qq);
    ll = fma(y, y, ll);
  }
  return WarpSum(dot) / sqrt(WarpSum(qq) * WarpSum(ll));
}

// Computed by a warp; every lane gets the result.
__device__ float Cosine(const float* q, const float* label, int32_t n) {
  float dot = 0, qq = 0, ll = 0;
  for (int32_t i = threadIdx.x % 32; i < n; i += 32) {
    const float x = q[i], y = label[i];
    dot = fmaf(x, y, dot);
    qq = fmaf(x, x, qq);
    ll = fmaf(y, y, ll);
  }
  dot = WarpSum(dot);
  qq = WarpSum(qq);
  ll = WarpSum(ll);
  const double cosine = Trusted(qq) && Trusted(ll)
                            ? dot / sqrt(static_cast<double>(qq) * static_cast<double>(ll))
                            : ScaledCosine(q, label, n);
  // A NaN counts as a miss for any threshold.
  if (isnan(cosine)) return -1;
  return static_cast<float>(fmin(fmax(cosine, -1.0), 1.0));
}

// As AggregateSimilarity (ops/reuse/qsac_lookup.h).
__device__ float Aggregate(Aggregation aggregation, const float* similarities, int32_t group,
                           const float* importance) {
  if (aggregation == Aggregation::kMin || aggregation == Aggregation::kMean) {
    float smallest = similarities[0];
    double sum = 0;
    for (int32_t j = 0; j < group; ++j) {
      smallest = fminf(smallest, similarities[j]);
      sum += similarities[j];
    }
    return aggregation == Aggregation::kMin ? smallest : static_cast<float>(sum / group);
  }
  bool weighted = false;
  if (aggregation == Aggregation::kImportance) {
    for (int32_t j = 0; j < group; ++j) weighted |= importance[j] > 0;
  }
  double weights = 0, reciprocals = 0;
  float smallest = 1;
  bool positive = true;
  for (int32_t j = 0; j < group; ++j) {
    const double weight = weighted ? importance[j] : 1.0;
    if (!(weight > 0)) continue;
    smallest = fminf(smallest, similarities[j]);
    positive &= similarities[j] > 0;
    weights += weight;
    reciprocals += weight / static_cast<double>(similarities[j]);
  }
  return positive ? static_cast<float>(weights / reciprocals) : smallest;
}

// Copies a token that has left the recent window into a cached slot that keeps codes: the codes
// that the store has for it, or will have once this step's spill has run. Called by a warp.
__device__ void KeepCodes(const StepSequence& s, const LiteCacheShape& shape,
                          const LiteCacheLayer& layer, int32_t head, int32_t token, int32_t slot) {
  const CodeSlots& codes = layer.codes;
  const auto d = static_cast<int32_t>(layer.slots.format.head_dim);
  const int32_t list = layer.slots.list_of_head[head];
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const auto [page, in_page] = CodesOf(s, layer.slots, codes, list, slot);
  std::byte* target = page.Codes(in_page);
  if (token < s.stored) {
    // The ring may hold a row that was rounded twice: quantized in the store and expanded by a
    // fill.
    const int32_t stored_list = layer.store.list_of_head[head];
    CopyCodes<1>(
        1, d, [&](int32_t) { return RowOf(s, layer.store, stored_list, token); },
        [&](int32_t) { return target; });
    if (lane == 0) page.Scales()[in_page] = __ldcg(ScalesOf(s, layer.store, stored_list, token));
    return;
  }
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(
      RowOf(s, layer.slots, list, shape.windows.FixedSlot(token)));
  float scales[2];
  for (int32_t part = 0; part < 2; ++part) {
    scales[part] = PartScale(codes.encoding, d,
                             [&](int32_t i) { return __bfloat162float(values[part * d + i]); });
  }
  for (int32_t i = lane; i < 2 * d; i += 32) {
    const int32_t channel = i < d ? KeyChannel(i % 16) : ValueChannel(i % 16);
    reinterpret_cast<uint8_t*>(CodeChunk(target, i / 16))[i % 16] = EncodeCode(
        codes.encoding, __bfloat162float(values[i / 16 * 16 + channel]), scales[i < d ? 0 : 1]);
  }
  if (lane == 0) page.Scales()[in_page] = {scales[0], scales[1]};
}

// Adds the token that has left the recent window as the next cached row (kv: KeepAll, AppendSlot).
// Called by one thread. Returns whether there is one.
__device__ bool KeepLeaving(const StepSequence& s, const LiteCacheShape& shape,
                            const LiteCacheLayer& layer, int32_t list, int32_t pair) {
  HeadState& state = s.heads[list];
  const int32_t n = s.past + 1;
  state.window_begin = shape.windows.RecentBegin(n);
  const int32_t candidates = shape.windows.Candidates(n);
  if (candidates == shape.windows.Candidates(s.past)) return false;
  const int32_t index = candidates - 1, slot = shape.cache_begin + index;
  const int32_t position = shape.windows.sink + index;
  if (index >= state.used) {  // otherwise this step has been run before
    state.used = index + 1;
    const SlotEntry entry = SlotOf(s, layer, list, slot);
    *entry.position = position;
    *entry.update = state.update;
  }
  layer.moved_positions[int64_t{pair} * shape.max_rows] = position;
  layer.moved_slots[int64_t{pair} * shape.max_rows] = slot;
  layer.moved_count[pair] = 1;
  return true;
}

// Of a lookup that checks one with a predicted query: VerifyLookup's arguments.
struct LookupCheck {
  bool checks = false;
  LookupLimits limits;
  StepCondition condition;
};

// One block per pair, one warp per query head.
__global__ void LookupKernel(const __grid_constant__ StepView step,
                             const __grid_constant__ LiteCacheShape shape,
                             const __grid_constant__ LiteCacheLayer layer, Aggregation aggregation,
                             const float* q, int64_t stride, LookupCheck check) {
  __shared__ float similarities[kMaxGroup];
  __shared__ bool take_query, keep_row;
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  const StepSequence& s = step.sequences[sequence];
  const int32_t pair = sequence * shape.kv_heads + head;
  const int32_t list = layer.slots.list_of_head[head], count = *step.count;
  LetNextKernelStart();
  WaitForKernelBefore();
  if (sequence >= count) return;
  if (threadIdx.x == 0) {
    layer.refresh[pair] = 0;
    layer.moved_count[pair] = 0;
  }
  if (list < 0) return;
  const int32_t d = shape.head_dim;
  const float* query = q + s.first_row * stride + int64_t{head} * shape.group * d;
  float* label = LabelOf(s, shape, list);
  if (shape.windows.AllFit(s.past + 1)) {
    if (check.checks) return;
    // All candidates are cached, so the label may be any query: this step's.
    if (threadIdx.x == 0) {
      keep_row = KeepLeaving(s, shape, layer, list, pair);
      take_query = true;
    }
    __syncthreads();
    if (keep_row && threadIdx.x < 32) {
      const int32_t token = layer.moved_positions[int64_t{pair} * shape.max_rows];
      const int32_t to = layer.moved_slots[int64_t{pair} * shape.max_rows];
      if (layer.codes.page_slots > 0) {
        KeepCodes(s, shape, layer, head, token, to);
      } else {
        MoveSome(
            1, layer.slots.format, layer.slots.format,
            [&](int32_t) { return RowOf(s, layer.slots, list, shape.windows.FixedSlot(token)); },
            [&](int32_t) { return RowOf(s, layer.slots, list, to); });
      }
    }
  } else {
    for (int32_t j = threadIdx.x / 32; j < shape.group; j += blockDim.x / 32) {
      const float cosine = Cosine(query + j * d, label + j * d, d);
      if (threadIdx.x % 32 == 0) similarities[j] = cosine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      HeadState& state = s.heads[list];
      const float similarity =
          Aggregate(aggregation, similarities, shape.group,
                    aggregation == Aggregation::kImportance ? layer.importance + head * shape.group
                                                            : nullptr);
      // Rows chosen at this step, by its prediction: also if a step that failed is run again.
      const bool predicted =
          check.checks && state.window_begin == shape.windows.RecentBegin(s.past + 1);
      const float tau = fmaxf(layer.tau[sequence * layer.tau_stride + head] - check.limits.margin,
                              predicted ? check.limits.least_tau : -1.0f);
      const bool hit = state.pending == 0 && similarity > tau;
      DeviceHeadCounters& counters = layer.counters[head];
      atomicAdd(&counters.lookups, 1ull);
      atomicAdd(&counters.similarity, static_cast<double>(similarity));
      if (hit) {
        atomicAdd(&counters.hits, 1ull);
      } else {
        state.pending = 1;
        layer.refresh[pair] = 1;
        check.condition.Ask();
      }
      take_query = !hit;
    }
  }
  __syncthreads();
  if (!take_query) return;
  for (int32_t i = threadIdx.x; i < shape.group * d; i += blockDim.x) label[i] = query[i];
}

__global__ void KeepLastQueriesKernel(const __grid_constant__ StepView step,
                                      const __grid_constant__ LiteCacheShape shape,
                                      const __grid_constant__ LiteCacheLayer layer, const float* q,
                                      int64_t stride) {
  const int32_t head = blockIdx.x, sequence = blockIdx.y;
  if (sequence >= *step.count) return;
  const StepSequence& s = step.sequences[sequence];
  const int32_t list = layer.slots.list_of_head[head];
  if (list < 0 || s.rows < 1) return;
  const int32_t size = shape.group * shape.head_dim;
  const float* query = q + (int64_t{s.first_row} + s.rows - 1) * stride + int64_t{head} * size;
  float* label = LabelOf(s, shape, list);
  for (int32_t i = threadIdx.x; i < size; i += blockDim.x) label[i] = query[i];
}

dim3 PairGrid(const StepView& step, const LiteCacheShape& shape) {
  return {static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(step.capacity)};
}

void CheckQueries(const LiteCacheShape& shape, const MatrixView& q) {
  LC_CHECK(
      q.dtype == DType::kF32 && q.cols == int64_t{shape.kv_heads} * shape.group * shape.head_dim,
      "queries of {} columns, {} KV heads, groups of {}, head_dim {}", q.cols, shape.kv_heads,
      shape.group, shape.head_dim);
}

void LaunchLookup(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, Aggregation aggregation, const MatrixView& q,
                  const LookupCheck& check) {
  CheckQueries(shape, q);
  LC_CHECK(shape.group >= 1 && shape.group <= kMaxGroup, "a group of {}", shape.group);
  LC_CHECK(aggregation != Aggregation::kImportance || layer.importance != nullptr);
  const int threads = 32 * std::min(shape.group, kMaxWarps);
  LaunchOverlapping(AsCuda(stream), LookupKernel, PairGrid(step, shape), threads, 0, step, shape,
                    layer, aggregation, q.Row<const float>(0), q.stride, check);
}

}  // namespace

void Lookup(Stream& stream, const StepView& step, const LiteCacheShape& shape,
            const LiteCacheLayer& layer, Aggregation aggregation, const MatrixView& q) {
  LaunchLookup(stream, step, shape, layer, aggregation, q, {});
}

void VerifyLookup(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, Aggregation aggregation, const MatrixView& q,
                  const LookupLimits& limits, const StepCondition& condition) {
  LaunchLookup(stream, step, shape, layer, aggregation, q,
               {.checks = true, .limits = limits, .condition = condition});
}

void KeepLastQueries(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                     const LiteCacheLayer& layer, const MatrixView& q) {
  CheckQueries(shape, q);
  KeepLastQueriesKernel<<<PairGrid(step, shape), 256, 0, AsCuda(stream).handle()>>>(
      step, shape, layer, q.Row<const float>(0), q.stride);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
