#include "ops/select/component_products.cuh"
#include "ops/select/softmax_select.cuh"

namespace litecache::ops::cuda {
namespace {

// Components of the keys, two bf16 per word, 32 tokens interleaved; each lane handles one token.
template <int kHeads>
struct BasisProducts {
  static constexpr int kAtOnce = 1;
  int32_t pairs = 0, basis_stride = 0;
  const float* basis = nullptr;  // [kv_heads][head_dim][basis_stride]

  size_t SharedBytes(int64_t group, int64_t) const {
    return static_cast<size_t>(8 * pairs * ((group + kHeads - 1) / kHeads * kHeads));
  }

  // queries [group, padded][2 pairs]: components of the queries, with terms in the CPU's order.
  __device__ void Prepare(const ScoreJob& job, float* queries) const {
    const int32_t d = job.shape.head_dim, components = 2 * pairs;
    const int32_t padded = (job.shape.group + kHeads - 1) / kHeads * kHeads;
    const float* of_head = basis + int64_t{job.target.head} * d * basis_stride;
    for (int32_t i = threadIdx.x; i < padded * components; i += kTeamThreads) {
      const int32_t j = i / components, component = i % components;
      float sum = 0;
      if (j < job.shape.group) {
#pragma unroll 8
        for (int32_t c = 0; c < d; ++c) {
          sum = fmaf(of_head[int64_t{c} * basis_stride + component], job.target.q[j * d + c], sum);
        }
      }
      queries[i] = sum;
    }
  }

  __device__ void operator()(const ScoreJob& job, const float* queries, int32_t t,
                             int32_t first_head, float (&s)[kHeads]) const {
    ComponentProducts<kHeads>(job, queries, pairs, t, first_head, s);
  }
};

}  // namespace

void ProjectionSelect(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                      const LiteCacheLayer& layer, const ProjectionFormat& format,
                      const float* basis, const SelectQuery& query, void* scratch) {
  LC_CHECK(format.rank >= 1 && format.rank <= 256, "rank {}", format.rank);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  LaunchSoftmaxSelect(stream, step, shape, layer, query, scratch, [&](auto heads) {
    return BasisProducts<decltype(heads)::value>{
        static_cast<int32_t>(format.pairs()), static_cast<int32_t>(format.basis_stride()), basis};
  });
}

}  // namespace litecache::ops::cuda
