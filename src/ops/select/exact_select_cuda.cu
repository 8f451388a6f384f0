#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/common/int4_rows.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

// Channels c and c + 1 of a key, c even; for fp8 and int8 without the key's scale.
__device__ __forceinline__ float2 KeyPair(RowEncoding encoding, const std::byte* row, int32_t d,
                                          int32_t c) {
  switch (encoding) {
    case RowEncoding::kInt4: {
      const uint32_t codes = __ldcg(reinterpret_cast<const unsigned char*>(row) + c / 2);
      const float2 range = Int4Range(row, d, 0, c / kInt4Group);
      return {Int4Value(codes & 15, range), Int4Value(codes >> 4, range)};
    }
    case RowEncoding::kBF16:
      return __bfloat1622float2(__ldcg(reinterpret_cast<const __nv_bfloat162*>(row) + c / 2));
    case RowEncoding::kF32: {
      const auto* x = reinterpret_cast<const float*>(row) + c;
      return {__ldcg(x), __ldcg(x + 1)};
    }
    default: {
      const uint32_t codes = __ldcg(reinterpret_cast<const unsigned short*>(row) + c / 2);
      if (encoding == RowEncoding::kInt8) {
        return {static_cast<float>(static_cast<int8_t>(codes & 0xff)),
                static_cast<float>(static_cast<int8_t>(codes >> 8))};
      }
      __nv_fp8x2_e4m3 pair;
      pair.__x = static_cast<__nv_fp8x2_storage_t>(codes);
      return static_cast<float2>(pair);
    }
  }
}

// Keys of the store (over the link) or of resident pages; a warp reads one row at a time.
template <int kHeads>
struct RowProducts {
  static constexpr int kAtOnce = 1;
  static size_t Padded(int64_t group) {
    return static_cast<size_t>((group + kHeads - 1) / kHeads * kHeads);
  }
  size_t SharedBytes(int64_t group, int64_t head_dim) const {
    return 4 * Padded(group) * static_cast<size_t>(head_dim);
  }

  __device__ void Prepare(const ScoreJob& job, float* queries) const {
    const int32_t size = job.shape.group * job.shape.head_dim;
    const int32_t padded = (job.shape.group + kHeads - 1) / kHeads * kHeads * job.shape.head_dim;
    for (int32_t i = threadIdx.x; i < padded; i += kTeamThreads) {
      queries[i] = i < size ? job.target.q[i] : 0;
    }
  }

  __device__ void operator()(const ScoreJob& job, const float* queries, int32_t t,
                             int32_t first_head, float (&s)[kHeads]) const {
    const int32_t lane = threadIdx.x % 32, d = job.shape.head_dim;
    const bool offloaded = job.target.list >= 0;
    const RowTable& table = offloaded ? job.layer.store : job.layer.resident;
    const int32_t list = table.list_of_head[job.target.head];
    const RowEncoding encoding = table.format.encoding;
    const int32_t begin = max(t, job.first), end = min(t + 32, job.last);
#pragma unroll
    for (int j = 0; j < kHeads; ++j) s[j] = 0;
#pragma unroll 4
    for (int32_t token = begin; token < end; ++token) {
      const std::byte* row = RowOf(*job.target.sequence, table, list, token);
      float sum[kHeads] = {};
      for (int32_t c = 2 * lane; c < d; c += 64) {
        const float2 key = KeyPair(encoding, row, d, c);
#pragma unroll
        for (int j = 0; j < kHeads; ++j) {
          const float2 q = *reinterpret_cast<const float2*>(queries + (first_head + j) * d + c);
          sum[j] = fmaf(key.x, q.x, fmaf(key.y, q.y, sum[j]));
        }
      }
      float scale = 1.0f;
      if (table.format.scales_apart) {
        scale = __ldcg(&ScalesOf(*job.target.sequence, table, list, token)->x);
      } else if (encoding == RowEncoding::kFp8 || encoding == RowEncoding::kInt8) {
        scale = __ldcg(reinterpret_cast<const float*>(row + 2 * d));
      }
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        const float total = WarpSum(sum[j]) * scale;
        if (token == t + lane) s[j] = total;
      }
    }
  }
};

}  // namespace

void ExactSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                 const LiteCacheLayer& layer, const SelectQuery& query, void* scratch) {
  LC_CHECK(shape.head_dim % 2 == 0, "head_dim {} is not even", shape.head_dim);
  LaunchSoftmaxSelect(stream, step, shape, layer, query, scratch,
                      [](auto heads) { return RowProducts<decltype(heads)::value>(); });
}

}  // namespace litecache::ops::cuda
