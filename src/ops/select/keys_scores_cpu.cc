#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/dtype.h"
#include "ops/select/keys_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/keys_scores_cpu.cc"
#include "hwy/foreach_target.h"
// Highway's header comes after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;

// Of every lane, sum + the products of its four bytes: codes are below 128, those of a query
// signed.
HWY_INLINE hn::Vec<I32> AddProducts(hn::Vec<I32> sum, hn::Vec<I32> codes, hn::Vec<I32> query) {
#if HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(codes.raw, query.raw);
  return {_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(codes.raw, query.raw);
  return {_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#else
  const auto byte = [](auto v) HWY_ATTR { return hn::ShiftRight<24>(v); };  // the highest, signed
  sum = hn::Add(sum, hn::Mul(byte(codes), byte(query)));
  sum = hn::Add(sum, hn::Mul(byte(hn::ShiftLeft<8>(codes)), byte(hn::ShiftLeft<8>(query))));
  sum = hn::Add(sum, hn::Mul(byte(hn::ShiftLeft<16>(codes)), byte(hn::ShiftLeft<16>(query))));
  return hn::Add(sum, hn::Mul(byte(hn::ShiftLeft<24>(codes)), byte(hn::ShiftLeft<24>(query))));
#endif
}

// kHeads heads at once: a token's codes are loaded and parted once for all of them.
template <int kBits, int kHeads>
HWY_INLINE void ScoreHeads(const KeysFormat& format, const std::byte* data, int64_t blocks,
                           const KeysQuery& query, const float* shift, int64_t first, float* scores,
                           int64_t stride) {
  constexpr int64_t kTokens = KeysFormat::kBlockTokens;
  constexpr int kParts = 8 / kBits;
  const F32 d;
  const I32 di;
  const U32 du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(du, kBits == 4 ? 0x0f0f0f0fu : 0x03030303u);
  const int64_t words = format.words(), groups = KeysQuery::Groups(format);
  const int32_t* bytes = query.bytes + first * groups;
  for (int64_t b = 0; b < blocks; ++b, data += format.block_bytes(), scores += kTokens) {
    const auto* codes = reinterpret_cast<const uint32_t*>(data);
    const auto* scales = reinterpret_cast<const f16*>(codes + words * kTokens);
    for (int64_t t = 0; t < kTokens; t += lanes) {
      hn::Vec<I32> sum[kHeads];
      for (int j = 0; j < kHeads; ++j) sum[j] = hn::Zero(di);
      for (int64_t w = 0; w < words; ++w) {
        auto word = hn::LoadU(du, codes + w * kTokens + t);
        for (int part = 0; part < kParts; ++part) {
          const auto four = hn::BitCast(di, hn::And(word, mask));
          for (int j = 0; j < kHeads; ++j) {
            sum[j] = AddProducts(sum[j], four, hn::Set(di, bytes[j * groups + w * kParts + part]));
          }
          word = hn::ShiftRight<kBits>(word);
        }
      }
      const auto scale = LoadAsF32(d, scales + t);
      for (int j = 0; j < kHeads; ++j) {
        const int64_t head = first + j;
        const auto value = hn::Sub(hn::Add(sum[j], sum[j]), hn::Set(di, query.sum[head]));
        const auto product = hn::Mul(hn::ConvertTo(d, value), hn::Set(d, query.factor[head]));
        const auto centre = hn::Set(d, shift[head]);
        hn::StoreU(hn::MulAdd(product, scale, centre), d, scores + j * stride + t);
      }
    }
  }
}

template <int kBits>
void ScoreBlocksOf(const KeysFormat& format, const std::byte* data, int64_t blocks,
                   const KeysQuery& query, const float* shift, int64_t heads, float* scores,
                   int64_t stride) {
  const auto score = [&](auto count, int64_t first) HWY_ATTR {
    ScoreHeads<kBits, decltype(count)::value>(format, data, blocks, query, shift, first,
                                              scores + first * stride, stride);
  };
  int64_t j = 0;
  for (; j + 4 <= heads; j += 4) score(std::integral_constant<int, 4>(), j);
  if (heads - j == 3) score(std::integral_constant<int, 3>(), j);
  if (heads - j == 2) score(std::integral_constant<int, 2>(), j);
  if (heads - j == 1) score(std::integral_constant<int, 1>(), j);
}

void ScoreBlocks(const KeysFormat& format, const std::byte* data, int64_t blocks,
                 const KeysQuery& query, const float* shift, int64_t heads, float* scores,
                 int64_t stride) {
  const auto score = format.bits == 4 ? ScoreBlocksOf<4> : ScoreBlocksOf<2>;
  score(format, data, blocks, query, shift, heads, scores, stride);
}

void RoundKey(const KeysFormat& format, const float* x, int32_t* codes, float* scale) {
  const F32 d;
  const I32 di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < format.stride(); i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    squares = hn::MulAdd(v, v, squares);
  }
  const float square = hn::GetLane(hn::SumOfLanes(d, squares));
  const float unit = format.step() * std::sqrt(square / static_cast<float>(format.head_dim));
  *scale = 0;
  std::fill_n(codes, format.stride(), 0);
  if (!(unit >= 1e-30f && square <= std::numeric_limits<float>::max())) return;
  const auto inverse = hn::Set(d, 0.5f / unit);
  const auto half = hn::Set(d, static_cast<float>(1 << (format.bits - 1)));
  const auto highest = hn::Set(d, static_cast<float>(format.offset()));
  auto projected = hn::Zero(d);
  for (int64_t i = 0; i < format.stride(); i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto step = hn::Floor(hn::MulAdd(v, inverse, half));
    const auto code = hn::Min(hn::Max(step, hn::Zero(d)), highest);
    projected = hn::MulAdd(v, hn::Sub(hn::Add(code, code), highest), projected);
    hn::StoreU(hn::ConvertTo(di, code), di, codes + i);
  }
  std::fill(codes + format.head_dim, codes + format.stride(), 0);
  // The kept key's product with the key is then the key's with itself: scores are not too small.
  *scale = square / hn::GetLane(hn::SumOfLanes(d, projected));
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ScoreBlocks);
HWY_EXPORT(RoundKey);

void KeysScores(const KeysFormat& format, const std::byte* data, int64_t blocks,
                const KeysQuery& query, const float* shift, int64_t heads, float* scores,
                int64_t stride) {
  HWY_DYNAMIC_DISPATCH(ScoreBlocks)
  (format, data, blocks, query, shift, heads, scores, stride);
}

void KeysRound(const KeysFormat& format, const float* x, int32_t* codes, float* scale) {
  HWY_DYNAMIC_DISPATCH(RoundKey)(format, x, codes, scale);
}

}  // namespace litecache::ops::cpu
#endif
