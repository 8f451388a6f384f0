#include "ops/sample/exponential_race_cpu.h"

#include <array>
#include <cstddef>

#include "ops/sample/exp_weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/exponential_race_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/exp2-inl.h"
#include "ops/common/simd-inl.h"

namespace litecache::ops::cpu {

// Compiled for the oldest CPU, where no product and sum become one operation: its weight is the
// GPU's to the last bit.
double TimeOf(float logit, float max, float scale, double exponential);

}  // namespace litecache::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

using U32 = hn::CappedTag<uint32_t, kRaceLanes>;
using Words = hn::Vec<U32>;

// The upper and lower halves of a * multiplier.
HWY_INLINE void MultiplyWide(Words a, uint32_t multiplier, Words* upper, Words* lower) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(a)} * multiplier;
  *upper = hn::Set(d, static_cast<uint32_t>(product >> 32));
  *lower = hn::Set(d, static_cast<uint32_t>(product));
#else
  const hn::RepartitionToWide<U32> wide;
  const Words by = hn::Set(d, multiplier);
  const Words even = hn::BitCast(d, hn::MulEven(a, by));
  const Words odd =
      hn::BitCast(d, hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), by));
  *upper = hn::OddEven(odd, hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, even))));
  *lower = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(wide, odd))), even);
#endif
}

// RaceWords of Lanes(U32) counters from `counter` on.
HWY_INLINE std::array<Words, 4> WordsFrom(const RaceDraw& draw, uint32_t counter) {
  const U32 d;
  PhiloxKey key = RaceKey(draw);
  std::array<Words, 4> words = {hn::Set(d, static_cast<uint32_t>(draw.index)),
                                hn::Set(d, static_cast<uint32_t>(draw.index >> 32)),
                                hn::Set(d, draw.sample), hn::Iota(d, counter)};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    Words upper_a, lower_a, upper_b, lower_b;
    MultiplyWide(words[0], kPhiloxMultiplier0, &upper_a, &lower_a);
    MultiplyWide(words[2], kPhiloxMultiplier1, &upper_b, &lower_b);
    words = {hn::Xor(hn::Xor(upper_b, words[1]), hn::Set(d, key.word[0])), lower_b,
             hn::Xor(hn::Xor(upper_a, words[3]), hn::Set(d, key.word[1])), lower_a};
    key.word[0] += kPhiloxWeyl0;
    key.word[1] += kPhiloxWeyl1;
  }
  return words;
}

int32_t DrawTokenImpl(const float* row, int64_t count, int32_t best, float scale,
                      const RaceDraw& draw) {
  const float max = row[best];
  const auto time_of = [&](int64_t i, double exponential) {
    return TimeOf(row[i], max, scale, exponential);
  };
  // The best token's weight is 1. Few others can arrive before it, and before those even fewer.
  FirstArrival first;
  first.Take(ExponentialOf(draw, best), best);

  const U32 d;
  const hn::Rebind<float, U32> df;
  const hn::Rebind<int32_t, U32> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto maxes = hn::Set(df, max), scales = hn::Set(df, scale * 1.44269504f);
  int64_t begin = 0;
  for (; begin + kRaceBlock <= count; begin += kRaceBlock) {
    for (int64_t lane = 0; lane < kRaceLanes; lane += lanes) {
      const auto counter = static_cast<uint32_t>(begin / 4 + lane);
      const std::array<Words, 4> words = WordsFrom(draw, counter);
      for (size_t j = 0; j < 4; ++j) {
        const int64_t at = begin + static_cast<int64_t>(j) * kRaceLanes + lane;
        const auto weight = Exp2(df, hn::Mul(hn::Sub(hn::LoadU(df, row + at), maxes), scales));
        // Half of a word, as conversions are of signed integers, is below half of E.
        const auto least = hn::ConvertTo(df, hn::BitCast(di, hn::ShiftRight<1>(words[j])));
        // Larger by more than the roundings of both sides.
        const auto bound = hn::Set(df, static_cast<float>(first.time * 1.0001 / (2 * kWordUnit)));
        if (HWY_LIKELY(hn::AllFalse(df, hn::Le(least, hn::Mul(weight, bound))))) continue;
        HWY_ALIGN std::array<uint32_t, kRaceLanes> of_lane;
        hn::Store(words[j], d, of_lane.data());
        for (int64_t k = 0; k < lanes; ++k) {
          const auto token = static_cast<int32_t>(at + k);
          first.Take(time_of(token, ExponentialOf(draw, token, of_lane[static_cast<size_t>(k)])),
                     token);
        }
      }
    }
  }
  for (; begin < count; ++begin) {
    const auto token = static_cast<int32_t>(begin);
    first.Take(time_of(token, ExponentialOf(draw, token)), token);
  }
  return first.token;
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

double TimeOf(float logit, float max, float scale, double exponential) {
  return exponential / double{ExpOfNonPositive((logit - max) * scale)};
}

HWY_EXPORT(DrawTokenImpl);

int32_t DrawToken(std::span<const float> row, int32_t best, float scale, const RaceDraw& draw) {
  return HWY_DYNAMIC_DISPATCH(DrawTokenImpl)(row.data(), static_cast<int64_t>(row.size()), best,
                                             scale, draw);
}

}  // namespace litecache::ops::cpu
#endif
