#include "ops/select/projection_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/projection_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

template <int kHeads>
HWY_INLINE void ScoreHeads(const uint32_t* block, int64_t pairs, const float* query, float* scores,
                           int64_t stride) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto upper = hn::Set(du, 0xffff0000u);
  constexpr int64_t kTokens = ProjectionFormat::kBlockTokens;
  for (int64_t t = 0; t < kTokens; t += lanes) {
    hn::Vec<F32> even[kHeads], odd[kHeads];
    for (int j = 0; j < kHeads; ++j) even[j] = odd[j] = hn::Zero(d);
    for (int64_t p = 0; p < pairs; ++p) {
      const auto pair = hn::LoadU(du, block + p * kTokens + t);
      const auto first = hn::BitCast(d, hn::ShiftLeft<16>(pair));
      const auto second = hn::BitCast(d, hn::And(pair, upper));
      for (int j = 0; j < kHeads; ++j) {
        const float* q = query + 2 * (j * pairs + p);
        even[j] = hn::MulAdd(first, hn::Set(d, q[0]), even[j]);
        odd[j] = hn::MulAdd(second, hn::Set(d, q[1]), odd[j]);
      }
    }
    for (int j = 0; j < kHeads; ++j) {
      hn::StoreU(hn::Add(even[j], odd[j]), d, scores + j * stride + t);
    }
  }
}

void ScoreBlocks(const std::byte* data, int64_t blocks, int64_t pairs, const float* query,
                 int64_t heads, float* scores, int64_t stride) {
  constexpr int64_t kTokens = ProjectionFormat::kBlockTokens;
  const auto* block = reinterpret_cast<const uint32_t*>(data);
  for (int64_t b = 0; b < blocks; ++b, block += pairs * kTokens, scores += kTokens) {
    int64_t j = 0;
    for (; j + 4 <= heads; j += 4) {
      ScoreHeads<4>(block, pairs, query + 2 * j * pairs, scores + j * stride, stride);
    }
    for (; j < heads; ++j) {
      ScoreHeads<1>(block, pairs, query + 2 * j * pairs, scores + j * stride, stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ScoreBlocks);

void ProjectionScores(const std::byte* data, int64_t blocks, int64_t pairs, const float* query,
                      int64_t heads, float* scores, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(ScoreBlocks)(data, blocks, pairs, query, heads, scores, stride);
}

}  // namespace litecache::ops::cpu
#endif
