#include <cuda_fp16.h>

#include "ops/cuda/hash_codes.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int kMaxPlanes = 8;

// The group's codes against a token's, as in ops/cpu/select/hash.h: a bit that agrees with the
// heads' majority differs from the minority alone, so that four heads take two population counts a
// word.
struct HashShared {
  int32_t base;
  uint32_t majority[kMaxHashWords];
  uint32_t plane[kMaxPlanes][kMaxHashWords];
  uint32_t codes[1];  // [group][words]
};

size_t SharedBytes(int64_t group, int64_t words) {
  return sizeof(HashShared) + static_cast<size_t>(4 * group * words);
}

// kWords: words of a code, 0: any number.
template <int kWords>
struct HashScorer {
  int32_t words_of_format;
  bool norms;
  const float* weights;  // [kv_heads][head_dim][bits]

  __device__ int32_t words() const { return kWords > 0 ? kWords : words_of_format; }

  __device__ void HashQueries(const ClusterTeam& team, const ScoreJob& job,
                              HashShared* shared) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t group = job.shape.group;
    HashOwnWords(team, job, weights, words(), shared->codes);
    if (threadIdx.x == 0) shared->base = 0;
    team.Sync();
    const int32_t shift = group % 2 == 0 ? 1 : 0;
    for (int32_t w = warp; w < words(); w += kTeamWarps) {
      const HashShared* source = team.Of(shared, w % team.size);
      int32_t set = 0;
      for (int32_t j = 0; j < group; ++j) set += source->codes[j * words() + w] >> lane & 1;
      const bool majority = 2 * set > group;
      const uint32_t majorities = __ballot_sync(kFullMask, majority);
      if (lane == 0) shared->majority[w] = majorities;
      const int32_t weight_of_bit = abs(group - 2 * set) >> shift;
      for (int32_t p = 0; p < kMaxPlanes; ++p) {
        const uint32_t plane = __ballot_sync(kFullMask, (weight_of_bit >> p & 1) != 0);
        if (lane == 0) shared->plane[p][w] = plane;
      }
      const int32_t base = __reduce_add_sync(kFullMask, majority ? group - set : set);
      if (lane == 0) atomicAdd(&shared->base, base);
    }
    __syncthreads();
  }

  __device__ void Score(const ClusterTeam& team, const ScoreJob& job, std::byte* memory) const {
    auto* shared = reinterpret_cast<HashShared*>(memory);
    HashQueries(team, job, shared);
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t group = job.shape.group;
    const int32_t planes = 32 - __clz(group >> (group % 2 == 0 ? 1 : 0));
    const int32_t bits = 32 * words();
    const int32_t best = norms ? group * bits - 2 * shared->base : -shared->base;
    const float inverse_bits = 1.0f / static_cast<float>(bits);
    const int32_t double_it = group % 2 == 0 ? 1 : 0;
    const int32_t list = job.layer.metadata.list_of_head[job.target.head];
    const int32_t page_tokens = job.layer.metadata.page_rows;
    const int32_t block_bytes = kSelectBlock * (4 * words() + (norms ? 2 : 0));
    // A warp scores a block of 32 tokens at a time, a lane one of them.
    for (int32_t t = job.first / kSelectBlock * kSelectBlock + warp * kSelectBlock; t < job.last;
         t += kTeamThreads) {
      const int32_t page = t / page_tokens;
      const std::byte* block = PageOf(*job.target.sequence, job.layer.metadata, list, page) +
                               int64_t{(t - page * page_tokens) / kSelectBlock} * block_bytes;
      const auto* codes = reinterpret_cast<const uint32_t*>(block) + lane;
      uint32_t differing = 0;
      if constexpr (kWords > 0) {
        uint32_t code[kWords];
#pragma unroll
        for (int w = 0; w < kWords; ++w) code[w] = __ldcs(codes + w * 32);
#pragma unroll
        for (int w = 0; w < kWords; ++w) code[w] ^= shared->majority[w];
        for (int32_t p = planes - 1; p >= 0; --p) {
          differing *= 2;
#pragma unroll
          for (int w = 0; w < kWords; ++w) differing += __popc(code[w] & shared->plane[p][w]);
        }
      } else {
        for (int32_t p = planes - 1; p >= 0; --p) {
          differing *= 2;
          for (int w = 0; w < words(); ++w) {
            differing += __popc((codes[w * 32] ^ shared->majority[w]) & shared->plane[p][w]);
          }
        }
      }
      const auto total = static_cast<int32_t>(differing << double_it);
      float score;
      if (norms) {
        const auto* lengths =
            reinterpret_cast<const unsigned short*>(block + kSelectBlock * 4 * words());
        const float norm = __half2float(__ushort_as_half(__ldcs(lengths + lane)));
        score = static_cast<float>(best - 2 * total) * inverse_bits * norm;
      } else {
        score = static_cast<float>(best - total);
      }
      if (t + lane >= job.first && t + lane < job.last) {
        job.keys[t + lane - job.first] = OrderedKey(score);
      }
    }
  }
};

}  // namespace

void HashSelect(Stream& stream, const StepView& step, const LiteShape& shape,
                const LiteLayer& layer, const HashFormat& format, const float* weights,
                const SelectQuery& query, void* scratch) {
  LC_CHECK(format.bits >= 32 && format.bits % 32 == 0 && format.words() <= kMaxHashWords, "{} bits",
           format.bits);
  LC_CHECK(shape.group >= 1 && shape.group < (1 << kMaxPlanes), "a group of {}", shape.group);
  LC_CHECK(layer.metadata.page_rows % kSelectBlock == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const size_t bytes = SharedBytes(shape.group, format.words());
  const auto words = static_cast<int32_t>(format.words());
  switch (words) {
    case 4:
      return LaunchSelect(stream, step, shape, layer, query,
                          HashScorer<4>{words, format.norms, weights}, bytes, scratch);
    case 8:
      return LaunchSelect(stream, step, shape, layer, query,
                          HashScorer<8>{words, format.norms, weights}, bytes, scratch);
    default:
      return LaunchSelect(stream, step, shape, layer, query,
                          HashScorer<0>{words, format.norms, weights}, bytes, scratch);
  }
}

}  // namespace litecache::ops::cuda
