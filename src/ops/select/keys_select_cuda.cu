#include "ops/select/kept_keys.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

// Keys in kBits a channel, 32 tokens interleaved; a lane has a token.
template <int kHeads, int kBits>
struct KeptProducts {
  static constexpr int kAtOnce = 1;
  static constexpr int kParts = 8 / kBits;
  KeysLayout layout;
  const float* rotation = nullptr;  // [head_dim][stride]

  // In shared memory, of `padded` query heads.
  struct Queries {
    int32_t* bytes;  // [padded][groups]: four channels each
    int32_t* sum;    // [padded]: of the bytes, times the offset
    float* factor;   // [padded]: a byte's unit
    float* first;    // [padded]: product with the first block's mean
    float* rotated;  // [padded][stride]
  };
  __host__ __device__ static int32_t Padded(int32_t group) {
    return (group + kHeads - 1) / kHeads * kHeads;
  }
  __device__ Queries Parts(float* memory, int32_t group) const {
    const int32_t padded = Padded(group);
    auto* integers = reinterpret_cast<int32_t*>(memory);
    float* floats = memory + padded * (layout.groups() + 1);
    return {.bytes = integers,
            .sum = integers + padded * layout.groups(),
            .factor = floats,
            .first = floats + padded,
            .rotated = floats + 2 * padded};
  }
  size_t SharedBytes(int64_t group, int64_t) const {
    const int64_t padded = Padded(static_cast<int32_t>(group));
    return sizeof(float) * static_cast<size_t>(padded * (layout.groups() + 3 + layout.stride));
  }

  __device__ const uint32_t* BlockOf(const ScoreJob& job, int32_t t) const {
    const RowTable& table = job.layer.metadata;
    const int32_t list = table.list_of_head[job.target.head], page = t / table.page_rows;
    return reinterpret_cast<const uint32_t*>(PageOf(*job.target.sequence, table, list, page) +
                                             (t - page * table.page_rows) / kKeysBlock *
                                                 layout.block_bytes());
  }

  // By a warp, of a block: s[j] of lane t is head first_head + j's product with key t, without its
  // centre.
  __device__ void Products(const uint32_t* block, const Queries& queries, int32_t first_head,
                           float (&s)[kHeads]) const {
    constexpr uint32_t kMask = kBits == 4 ? 0x0f0f0f0f : 0x03030303;
    const int32_t lane = threadIdx.x % 32, groups = layout.groups();
    const int32_t* bytes = queries.bytes + first_head * groups;
    int32_t sum[kHeads] = {};
#pragma unroll 4
    for (int32_t w = 0; w < layout.words; ++w) {
      uint32_t word = block[w * kKeysBlock + lane];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const auto codes = static_cast<int32_t>(word & kMask);
        word >>= kBits;
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          sum[j] = __dp4a(codes, bytes[j * groups + w * kParts + part], sum[j]);
        }
      }
    }
    const float scale = __half2float(KeyScalesOf(layout, block)[lane]);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const int32_t head = first_head + j;
      s[j] = static_cast<float>(2 * sum[j] - queries.sum[head]) * queries.factor[head] * scale;
    }
  }

  // By a warp: head j's bytes of its rotated query.
  __device__ void RoundQuery(const Queries& queries, int32_t j, int32_t d) const {
    const int32_t lane = threadIdx.x % 32;
    const float* x = queries.rotated + j * layout.stride;
    float largest = 0;
    bool finite = true;
    for (int32_t c = lane; c < d; c += 32) {
      finite = finite && isfinite(x[c]);
      largest = fmaxf(largest, fabsf(x[c]));
    }
    largest = WarpMax(largest);
    const bool counts = __all_sync(kFullMask, finite) && largest >= 1e-30f;
    int32_t sum = 0;
    for (int32_t g = lane; g < layout.groups(); g += 32) {
      uint32_t bytes = 0;
      for (int32_t i = 0; counts && i < 4 && 4 * g + i < d; ++i) {
        const int32_t byte = __float2int_rn(x[4 * g + i] * (127 / largest));
        sum += byte;
        bytes |= (static_cast<uint32_t>(byte) & 0xff) << (8 * i);
      }
      queries.bytes[j * layout.groups() + g] = static_cast<int32_t>(bytes);
    }
    sum = __reduce_add_sync(kFullMask, sum);
    if (lane == 0) {
      queries.sum[j] = layout.offset() * sum;
      queries.factor[j] = counts ? largest / 127 : 0;
    }
  }

  __device__ void Prepare(const ScoreJob& job, float* memory) const {
    const int32_t d = job.shape.head_dim, group = job.shape.group, padded = Padded(group);
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Queries queries = Parts(memory, group);
    for (int32_t i = threadIdx.x; i < padded * layout.stride; i += kTeamThreads) {
      const int32_t j = i / layout.stride, channel = i % layout.stride;
      float sum = 0;
      if (j < group) {
#pragma unroll 8
        for (int32_t c = 0; c < d; ++c) {
          sum = fmaf(rotation[int64_t{c} * layout.stride + channel], job.target.q[j * d + c], sum);
        }
      }
      queries.rotated[i] = sum;
    }
    __syncthreads();
    for (int32_t j = warp; j < padded; j += kTeamWarps) RoundQuery(queries, j, d);
    __syncthreads();
    if (job.target.end <= kKeysBlock) return;  // the first block may not be whole
    for (int32_t j0 = warp * kHeads; j0 < padded; j0 += kTeamWarps * kHeads) {
      float s[kHeads];
      Products(BlockOf(job, 0), queries, j0, s);
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const float mean = WarpSum(s[j]) / kKeysBlock;
        if (lane == 0) queries.first[j0 + j] = mean;
      }
    }
  }

  __device__ void operator()(const ScoreJob& job, const float* memory, int32_t t,
                             int32_t first_head, float (&s)[kHeads]) const {
    const Queries queries = Parts(const_cast<float*>(memory), job.shape.group);
    Products(BlockOf(job, t), queries, first_head, s);
    if (t < kKeysBlock) return;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) s[j] += queries.first[first_head + j];
    const int32_t span = t / kKeysCentre * kKeysCentre;
    if (span == 0 || t == span) return;
    float centre[kHeads];
    Products(BlockOf(job, span), queries, first_head, centre);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) s[j] += WarpSum(centre[j]) / kKeysBlock;
  }
};

}  // namespace

void KeysSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                const LiteCacheLayer& layer, const KeysFormat& format, const float* rotation,
                const SelectQuery& query, void* scratch) {
  LC_CHECK(shape.head_dim == format.head_dim && (format.bits == 2 || format.bits == 4),
           "head_dim {}, {} bits of {}", shape.head_dim, format.bits, format.head_dim);
  static_assert(kSelectBlock == kKeysBlock);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const auto launch = [&](auto bits) {
    LaunchSoftmaxSelect(stream, step, shape, layer, query, scratch, [&](auto heads) {
      return KeptProducts<decltype(heads)::value, decltype(bits)::value>{LayoutOf(format),
                                                                         rotation};
    });
  };
  if (format.bits == 4) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, 2>());
  }
}

}  // namespace litecache::ops::cuda
