#include <cmath>

#include "ops/select/hash_cpu.h"

// Population counts of whole vectors need Highway's AVX3_DL, which is not among its default
// targets.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/hash_scores_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

void PackSignsRow(const float* x, int64_t words, uint32_t* code) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t w = 0; w < words; ++w, x += 32) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < 32; i += lanes) {
      uint8_t packed[8] = {};  // StoreMaskBits may write all of it
      hn::StoreMaskBits(d, hn::Gt(hn::LoadU(d, x + i), hn::Zero(d)), packed);
      uint32_t part;
      std::memcpy(&part, packed, sizeof(part));
      bits |= part << i;
    }
    code[w] = bits;
  }
}

float NormRow(const float* x, int64_t n) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * x[i];
  return std::sqrt(total);
}

void HashScoreBlocks(const HashFormat& format, const HashQuery& query, int64_t group,
                     const std::byte* data, int64_t blocks, float* scores) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::RebindToUnsigned<F32> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kTokens = HashFormat::kBlockTokens;
  const auto bits = static_cast<int32_t>(format.bits);
  const auto best =
      hn::Set(di, format.norms ? static_cast<int32_t>(group) * bits - 2 * query.base : -query.base);
  const auto inverse_bits = hn::Set(d, 1.0f / static_cast<float>(bits));
  for (int64_t b = 0; b < blocks; ++b, data += format.block_bytes(), scores += kTokens) {
    const auto* codes = reinterpret_cast<const uint32_t*>(data);
    const auto* norms = reinterpret_cast<const f16*>(codes + query.words * kTokens);
    for (int64_t i = 0; i < kTokens; i += lanes) {
      auto sum = hn::Zero(du);
      for (int64_t p = query.planes - 1; p >= 0; --p) {
        const auto& plane = query.plane[static_cast<size_t>(p)];
        sum = hn::Add(sum, sum);
        for (int64_t w = 0; w < query.words; ++w) {
          const auto word = static_cast<size_t>(w);
          const auto differing =
              hn::Xor(hn::LoadU(du, codes + w * kTokens + i), hn::Set(du, query.majority[word]));
          sum = hn::Add(sum, hn::PopulationCount(hn::And(differing, hn::Set(du, plane[word]))));
        }
      }
      auto differing = hn::BitCast(di, sum);
      if (query.shift != 0) differing = hn::Add(differing, differing);
      if (!format.norms) {
        hn::StoreU(hn::ConvertTo(d, hn::Sub(best, differing)), d, scores + i);
        continue;
      }
      differing = hn::Add(differing, differing);
      const auto agreement = hn::Mul(hn::ConvertTo(d, hn::Sub(best, differing)), inverse_bits);
      hn::StoreU(hn::Mul(agreement, LoadAsF32(d, norms + i)), d, scores + i);
    }
  }
}

// kHeads heads at once: a token's code is loaded once for all of them.
template <int kHeads>
void HashHeadsOfBlocks(const HashFormat& format, const uint32_t* codes, const float* lengths,
                       const std::byte* data, int64_t blocks, float* scores, int64_t stride) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::RebindToUnsigned<F32> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kTokens = HashFormat::kBlockTokens;
  const int64_t words = format.words();
  const auto bits = hn::Set(di, static_cast<int32_t>(format.bits));
  hn::Vec<F32> factor[kHeads];
  for (int j = 0; j < kHeads; ++j) {
    factor[j] = hn::Set(d, lengths[j] / static_cast<float>(format.bits));
  }
  for (int64_t b = 0; b < blocks; ++b, data += format.block_bytes(), scores += kTokens) {
    const auto* keys = reinterpret_cast<const uint32_t*>(data);
    const auto* norms = reinterpret_cast<const f16*>(keys + words * kTokens);
    for (int64_t i = 0; i < kTokens; i += lanes) {
      hn::Vec<decltype(du)> differing[kHeads];
      for (int j = 0; j < kHeads; ++j) differing[j] = hn::Zero(du);
      for (int64_t w = 0; w < words; ++w) {
        const auto key = hn::LoadU(du, keys + w * kTokens + i);
        for (int j = 0; j < kHeads; ++j) {
          const auto query = hn::Set(du, codes[j * words + w]);
          differing[j] = hn::Add(differing[j], hn::PopulationCount(hn::Xor(key, query)));
        }
      }
      const auto norm = LoadAsF32(d, norms + i);
      for (int j = 0; j < kHeads; ++j) {
        const auto twice = hn::BitCast(di, hn::Add(differing[j], differing[j]));
        const auto agreement = hn::ConvertTo(d, hn::Sub(bits, twice));
        hn::StoreU(hn::Mul(hn::Mul(agreement, factor[j]), norm), d, scores + j * stride + i);
      }
    }
  }
}

void HashHeadScoreBlocks(const HashFormat& format, const uint32_t* codes, const float* lengths,
                         int64_t group, const std::byte* data, int64_t blocks, float* scores,
                         int64_t stride) {
  const int64_t words = format.words();
  int64_t j = 0;
  for (; j + 4 <= group; j += 4) {
    HashHeadsOfBlocks<4>(format, codes + j * words, lengths + j, data, blocks, scores + j * stride,
                         stride);
  }
  for (; j < group; ++j) {
    HashHeadsOfBlocks<1>(format, codes + j * words, lengths + j, data, blocks, scores + j * stride,
                         stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(PackSignsRow);
HWY_EXPORT(NormRow);
HWY_EXPORT(HashScoreBlocks);
HWY_EXPORT(HashHeadScoreBlocks);

void PackSigns(const float* x, int64_t words, uint32_t* code) {
  HWY_DYNAMIC_DISPATCH(PackSignsRow)(x, words, code);
}

float Norm(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(NormRow)(x, n); }

void HashScores(const HashFormat& format, const HashQuery& query, int64_t group,
                const std::byte* data, int64_t blocks, float* scores) {
  HWY_DYNAMIC_DISPATCH(HashScoreBlocks)(format, query, group, data, blocks, scores);
}

void HashHeadScores(const HashFormat& format, const uint32_t* codes, const float* lengths,
                    int64_t group, const std::byte* data, int64_t blocks, float* scores,
                    int64_t stride) {
  HWY_DYNAMIC_DISPATCH(HashHeadScoreBlocks)
  (format, codes, lengths, group, data, blocks, scores, stride);
}

}  // namespace litecache::ops::cpu
#endif
