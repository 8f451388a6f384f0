#include "ops/select/top_k_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/common/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/select/top_k_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

// The threshold, the k-th largest score, is found first; a final pass collects the scores that
// reach it. A sample brackets the threshold, so that one pass over all scores leaves few to
// examine.
#ifndef LITECACHE_OPS_CPU_SELECT_TOP_K_
#define LITECACHE_OPS_CPU_SELECT_TOP_K_
namespace litecache::ops::cpu {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();
constexpr int64_t kSamples = kTopKSamples;
constexpr int64_t kPadding = kTopKPadding;

struct Ranks {
  // Among kSamples, 1-based, high <= low; 0 and kSamples + 1 are beyond the ends.
  int64_t high, low;
};

// The sample ranks that bracket the k-th of n: four standard deviations on either side.
Ranks BracketRanks(int64_t n, int64_t k) {
  const double p = static_cast<double>(k) / static_cast<double>(n);
  const double mean = p * kSamples;
  const double margin = 4 * std::sqrt(mean * (1 - p)) + 2;
  return {std::max<int64_t>(0, static_cast<int64_t>(mean - margin)),
          std::min<int64_t>(kSamples + 1, static_cast<int64_t>(mean + margin) + 1)};
}

}  // namespace
}  // namespace litecache::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

using I32 = hn::ScalableTag<int32_t>;

// Integers in the order of the scores: 0 and -0 become equal, NaN the lowest. Also pads behind the
// end.
void MakeKeys(const float* scores, int64_t n, int32_t* keys) {
  const auto key = [](auto d, auto score) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto bits = hn::BitCast(di, hn::Add(score, hn::Zero(d)));
    const auto flip = hn::And(hn::ShiftRight<31>(bits), hn::Set(di, kHighest));
    return hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(score)), hn::Set(di, kLowest),
                          hn::Xor(bits, flip));
  };
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    hn::StoreU(key(d, hn::LoadU(d, scores + i)), di, keys + i);
  });
  std::fill_n(keys + n, kPadding, kLowest);
}

// Counts keys >= `threshold`, which must not be the lowest key, so that padding does not count.
int64_t CountNotBelow(const int32_t* keys, int64_t n, int32_t threshold) {
  const I32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold - 1);
  const auto above = [&](int64_t i) HWY_ATTR {
    return static_cast<int64_t>(hn::CountTrue(d, hn::Gt(hn::LoadU(d, keys + i), limit)));
  };
  int64_t c0 = 0, c1 = 0, c2 = 0, c3 = 0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    c0 += above(i);
    c1 += above(i + lanes);
    c2 += above(i + 2 * lanes);
    c3 += above(i + 3 * lanes);
  }
  for (; i < n; i += lanes) c0 += above(i);
  return c0 + c1 + c2 + c3;
}

int64_t CountScores(const float* scores, int64_t n, float least) {
  int64_t count = 0;
  ForEachVector(n, [&](auto d, int64_t i) HWY_ATTR {
    count +=
        static_cast<int64_t>(hn::CountTrue(d, hn::Ge(hn::LoadU(d, scores + i), hn::Set(d, least))));
  });
  return count;
}

// The k-th largest key, which is in [low, high].
int32_t Bisect(const int32_t* keys, int64_t n, int64_t k, int32_t low, int32_t high) {
  while (low < high) {
    const auto middle = static_cast<int32_t>((static_cast<int64_t>(low) + high + 1) >> 1);
    if (CountNotBelow(keys, n, middle) >= k) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Copies the keys within [low, high] to `out` (with room for n and padding); above: the number of
// keys > high.
int64_t Extract(const int32_t* keys, int64_t n, int32_t low, int32_t high, int32_t* out,
                int64_t* above) {
  const I32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto lower = hn::Set(d, low), upper = hn::Set(d, high);
  int64_t count = 0, greater = 0;
  for (int64_t i = 0; i < n; i += lanes) {
    const auto key = hn::LoadU(d, keys + i);
    const auto over = hn::Gt(key, upper);
    const auto inside = hn::Not(hn::Or(over, hn::Gt(lower, key)));
    greater += static_cast<int64_t>(hn::CountTrue(d, over));
    hn::StoreU(hn::Compress(key, inside), d, out + count);
    count += static_cast<int64_t>(hn::CountTrue(d, inside));
  }
  if (low == kLowest) count = std::min(count, n - greater);  // without the padding behind them
  *above = greater;
  std::fill_n(out + count, kPadding, kLowest);
  return count;
}

int32_t Threshold(const int32_t* keys, int64_t n, int64_t k, int32_t* work) {
  // For fewer scores, bisection alone is as fast.
  if (n < kTopKMinSampled) return Bisect(keys, n, k, kLowest, kHighest);
  HWY_ALIGN int32_t sample[kSamples + kPadding];
  for (int64_t i = 0; i < kSamples; ++i) sample[i] = keys[TopKSamplePosition(i, n)];
  std::fill_n(sample + kSamples, kPadding, kLowest);
  const Ranks ranks = BracketRanks(n, k);
  const int32_t high =
      ranks.high < 1 ? kHighest : Bisect(sample, kSamples, ranks.high, kLowest, kHighest);
  const int32_t low =
      ranks.low > kSamples ? kLowest : Bisect(sample, kSamples, ranks.low, kLowest, high);
  int64_t above;
  const int64_t inside = Extract(keys, n, low, high, work, &above);
  // A sample that misses only costs time.
  if (above >= k) return Bisect(keys, n, k, high, kHighest);
  if (above + inside < k) return Bisect(keys, n, k, kLowest, low);
  return Bisect(work, inside, k - above, low, high);
}

// Writes first + i for the first k keys that are > threshold, or equal to it with i <= last_tie.
void Emit(const int32_t* keys, int64_t k, int32_t threshold, int64_t last_tie, int64_t first,
          int32_t* positions) {
  const I32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  const auto tie_limit = hn::Set(d, static_cast<int32_t>(first + last_tie + 1));
  auto position = hn::Iota(d, static_cast<int32_t>(first));
  HWY_ALIGN int32_t rest[hn::MaxLanes(I32())];
  int64_t count = 0;
  for (int64_t i = 0; count < k; i += lanes) {
    const auto key = hn::LoadU(d, keys + i);
    const auto tie = hn::And(hn::Eq(key, limit), hn::Lt(position, tie_limit));
    const auto taken = hn::Or(hn::Gt(key, limit), tie);
    const auto packed = hn::Compress(position, taken);
    const auto found = static_cast<int64_t>(hn::CountTrue(d, taken));
    if (count + lanes <= k) {
      hn::StoreU(packed, d, positions + count);
    } else {
      hn::Store(packed, d, rest);
      std::copy_n(rest, std::min(found, k - count), positions + count);
    }
    count += found;
    position = hn::Add(position, hn::Set(d, static_cast<int32_t>(lanes)));
  }
}

void SelectLargest(const int32_t* keys, int64_t n, int64_t k, int64_t first, int32_t* work,
                   int32_t* positions) {
  const int32_t threshold = Threshold(keys, n, k, work);
  int64_t ties =
      k - (threshold == kHighest ? 0 : CountNotBelow(keys, n, threshold + 1));  // to select
  int64_t last_tie = -1;
  const I32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; ties > 0; i += lanes) {
    const auto equal = hn::Eq(hn::LoadU(d, keys + i), hn::Set(d, threshold));
    const auto found = static_cast<int64_t>(hn::CountTrue(d, equal));
    if (found < ties) {
      ties -= found;
      continue;
    }
    for (last_tie = i; keys[last_tie] != threshold || --ties > 0;) ++last_tie;
  }
  Emit(keys, k, threshold, last_tie, first, positions);
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(CountScores);
HWY_EXPORT(MakeKeys);
HWY_EXPORT(SelectLargest);

namespace {
Scratch& ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}
}  // namespace

int64_t CountReaching(const float* scores, int64_t n, float least) {
  return HWY_DYNAMIC_DISPATCH(CountScores)(scores, n, least);
}

void TopK(const float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions) {
  if (k == n) {
    std::iota(positions, positions + n, static_cast<int32_t>(first));
    return;
  }
  const auto size = static_cast<size_t>(n + kPadding);
  auto* keys = ThreadScratch().Reserve<int32_t>(2 * size);
  HWY_DYNAMIC_DISPATCH(MakeKeys)(scores, n, keys);
  HWY_DYNAMIC_DISPATCH(SelectLargest)(keys, n, k, first, keys + size, positions);
}

void TopKOfPositive(float* scores, int64_t n, int64_t k, int64_t first, int32_t* positions) {
  if (k == n) {
    std::iota(positions, positions + n, static_cast<int32_t>(first));
    return;
  }
  auto* keys = reinterpret_cast<int32_t*>(scores);
  std::fill_n(keys + n, kPadding, kLowest);
  HWY_DYNAMIC_DISPATCH(SelectLargest)
  (keys, n, k, first, ThreadScratch().Reserve<int32_t>(static_cast<size_t>(n + kPadding)),
   positions);
}

void FinishSelection(const float* scores, Selection& selection) {
  const int64_t n = selection.end - selection.begin;
  selection.count = std::min(selection.k, n);
  TopK(scores, n, selection.count, selection.begin, selection.positions);
  if (selection.scores != nullptr) std::copy_n(scores, n, selection.scores);
}

void FinishPositive(float* scores, Selection& selection) {
  const int64_t n = selection.end - selection.begin;
  selection.count = std::min(selection.k, n);
  if (selection.scores != nullptr) std::copy_n(scores, n, selection.scores);
  TopKOfPositive(scores, n, selection.count, selection.begin, selection.positions);
}

}  // namespace litecache::ops::cpu
#endif
