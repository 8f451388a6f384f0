#include "ops/select/encode_cuda.h"
#include "ops/select/litecache_encode.cuh"

namespace litecache::ops::cuda {
namespace {

constexpr int32_t kTokens = BoundsFormat::kTokens;
constexpr int32_t kGroup = BoundsFormat::kGroup;
constexpr int kThreads = 128;

// The bf16 bits of the smallest number not below x, and of the largest not above x.
__device__ __forceinline__ uint32_t RoundUp(float x) {
  const uint32_t bits = __float_as_uint(x);
  return ((bits >> 31) != 0 ? bits : bits + 0xffffu) >> 16;
}
__device__ __forceinline__ uint32_t RoundDown(float x) {
  const uint32_t bits = __float_as_uint(x);
  return ((bits >> 31) != 0 ? bits + 0xffffu : bits) >> 16;
}

// One thread per channel of a block of tokens.
__global__ void __launch_bounds__(kThreads)
    BoundsEncodeKernel(const __grid_constant__ StepView step,
                       const __grid_constant__ LiteCacheShape shape,
                       const __grid_constant__ LiteCacheLayer layer, const KeySource source) {
  EncodeTarget target;
  if (!FindKeys(step, shape, layer, source, blockIdx.z, blockIdx.y, &target)) return;
  const int32_t d = shape.head_dim, page_tokens = layer.metadata.page_rows;
  for (int32_t block = target.begin / kTokens + blockIdx.x; block * kTokens < target.end;
       block += gridDim.x) {
    const int32_t begin = max(block * kTokens, target.begin);
    const int32_t end = min((block + 1) * kTokens, target.end);
    const int32_t page = begin / page_tokens;
    const int32_t in_page = begin - page * page_tokens;
    auto* group =
        reinterpret_cast<uint32_t*>(PageOf(*target.sequence, layer.metadata, target.list, page)) +
        int64_t{in_page / BoundsFormat::kGroupTokens} * kGroup * d;
    for (int32_t c = threadIdx.x; c < d; c += kThreads) {
      float least = KeyOf(shape, layer, source, target, begin)[c], greatest = least;
      for (int32_t t = begin + 1; t < end; ++t) {
        const float x = KeyOf(shape, layer, source, target, t)[c];
        least = fminf(least, x);
        greatest = fmaxf(greatest, x);
      }
      uint32_t* pair = group + c * kGroup + block % kGroup;
      if (begin % kTokens != 0) {  // otherwise the block starts anew
        least = fminf(least, __uint_as_float(*pair << 16));
        greatest = fmaxf(greatest, __uint_as_float(*pair & 0xffff0000u));
      }
      *pair = RoundDown(least) | RoundUp(greatest) << 16;
    }
  }
}

}  // namespace

void BoundsEncode(Stream& stream, const StepView& step, const LiteCacheShape& shape,
                  const LiteCacheLayer& layer, const BoundsFormat& format, const MatrixView* k) {
  LC_CHECK(format.head_dim == shape.head_dim, "head_dim {} and {}", format.head_dim,
           shape.head_dim);
  LC_CHECK(layer.metadata.page_rows % BoundsFormat::kGroupTokens == 0, "pages of {} tokens",
           layer.metadata.page_rows);
  const KeySource keys = KeysOf(shape, k);
  BoundsEncodeKernel<<<EncodeGrid(step, shape, keys, kTokens), kThreads, 0,
                       AsCuda(stream).handle()>>>(step, shape, layer, keys);
  LC_CUDA_LAUNCHED();
}

}  // namespace litecache::ops::cuda
