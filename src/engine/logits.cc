#include "engine/logits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ops/sample/exp_weight.h"

namespace litecache::engine {
namespace {

using ops::ExpOfNonPositive;

// Independent lanes, so that the compiler can vectorize the loops below without permission to
// reorder floating-point sums.
constexpr size_t kLanes = 16;

float MaxOf(const float* x, size_t count) {
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  float max = *std::max_element(lanes.begin(), lanes.end());
  for (; i < count; ++i) max = std::max(max, x[i]);
  return max;
}

float SumOf(const float* x, size_t count) {
  std::array<float, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j];
  }
  float sum = 0;
  for (; i < count; ++i) sum += x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

float Max(std::span<const float> row) { return MaxOf(row.data(), row.size()); }

int32_t ArgMax(std::span<const float> row) {
  constexpr size_t kBlock = 4096;
  float best = -std::numeric_limits<float>::infinity();
  size_t best_block = 0;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const float max = MaxOf(row.data() + begin, std::min(kBlock, row.size() - begin));
    if (max > best) {
      best = max;
      best_block = begin;
    }
  }
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(best_block);
  return static_cast<int32_t>(std::find(begin, row.end(), best) - row.begin());
}

bool AllFinite(std::span<const float> row) {
  // A NaN or an infinity has all exponent bits set.
  std::array<int32_t, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const int32_t bits = std::bit_cast<int32_t>(row[i + j]) & 0x7fffffff;
      lanes[j] = bits > lanes[j] ? bits : lanes[j];
    }
  }
  int32_t max = *std::max_element(lanes.begin(), lanes.end());
  for (; i < row.size(); ++i) max = std::max(max, std::bit_cast<int32_t>(row[i]) & 0x7fffffff);
  return max < 0x7f800000;
}

double Weights(std::span<const float> row, float max, float scale, std::span<float> weights,
               std::vector<double>* block_sums) {
  LC_CHECK(weights.size() >= row.size());
  block_sums->clear();
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kWeightBlock) {
    const size_t count = std::min(kWeightBlock, row.size() - begin);
    const float* x = row.data() + begin;
    float* w = weights.data() + begin;
    for (size_t i = 0; i < count; ++i) w[i] = ExpOfNonPositive((x[i] - max) * scale);
    block_sums->push_back(SumOf(w, count));
    total += block_sums->back();
  }
  return total;
}

double LogSumExp(std::span<const float> row) {
  const float max = Max(row);
  std::array<float, kWeightBlock> weights;
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kWeightBlock) {
    const size_t count = std::min(kWeightBlock, row.size() - begin);
    const float* x = row.data() + begin;
    for (size_t i = 0; i < count; ++i) weights[i] = ExpOfNonPositive(x[i] - max);
    total += SumOf(weights.data(), count);
  }
  return double{max} + std::log(total);
}

void SelectTop(std::span<const float> row, size_t k, std::vector<Candidate>* out) {
  out->clear();
  k = std::min(k, row.size());
  if (k == 0) return;
  // A buffer of candidates above a bar, which starts below all values. When the buffer is full, it
  // is cut to its k best and the k-th becomes the bar: few values pass it on average, whatever k
  // is.
  const size_t room = std::max<size_t>(2 * k, 64);
  out->reserve(std::min(room, row.size()));
  const auto cut = [&] {
    std::nth_element(out->begin(), out->begin() + static_cast<std::ptrdiff_t>(k - 1), out->end(),
                     MoreLikely);
    out->resize(k);
    return out->back().logit;
  };
  float bar = -std::numeric_limits<float>::infinity();
  bool full = false;  // k candidates reach the bar, so only values above it matter
  for (size_t i = 0; i < row.size(); ++i) {
    if (full && !(row[i] > bar)) continue;
    out->push_back({row[i], static_cast<int32_t>(i)});
    if (out->size() >= room) {
      bar = cut();
      full = true;
    }
  }
  if (out->size() > k) cut();
  std::sort(out->begin(), out->end(), MoreLikely);
}

TokenLogprob LogprobOf(std::span<const float> row, int32_t token, double log_sum) {
  return {token, static_cast<float>(double{row[static_cast<size_t>(token)]} - log_sum)};
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, size_t k, double log_sum) {
  std::vector<Candidate> top;
  SelectTop(row, k, &top);
  std::vector<TokenLogprob> result;
  result.reserve(top.size());
  for (const Candidate& candidate : top) {
    result.push_back(LogprobOf(row, candidate.token, log_sum));
  }
  return result;
}

std::vector<PromptLogprob> LogprobsOfGiven(std::span<const int32_t> tokens, int64_t begin,
                                           int64_t rows, const float* logits, int64_t vocab,
                                           int top, ThreadPool* pool) {
  const auto next = static_cast<size_t>(begin) + 1;
  std::vector<PromptLogprob> result(std::min(static_cast<size_t>(rows), tokens.size() - next));
  std::atomic<int64_t> not_finite{-1};
  const auto score = [&](int64_t first, int64_t end, int) {
    for (int64_t i = first; i < end; ++i) {
      const std::span<const float> row(logits + i * vocab, static_cast<size_t>(vocab));
      if (!AllFinite(row)) not_finite = begin + i;
      if (static_cast<size_t>(i) >= result.size()) continue;
      PromptLogprob& given = result[static_cast<size_t>(i)];
      const int32_t token = tokens[next + static_cast<size_t>(i)];
      const double log_sum = LogSumExp(row);
      given.token = LogprobOf(row, token, log_sum);
      if (top < 0) continue;
      const float logit = row[static_cast<size_t>(token)];
      given.rank = 1 + std::count_if(row.begin(), row.end(), [&](float x) { return x > logit; });
      given.top = TopLogprobs(row, static_cast<size_t>(top), log_sum);
    }
  };
  if (pool != nullptr) {
    pool->ParallelFor(rows, 1, score);
  } else {
    score(0, rows, 0);
  }
  if (not_finite >= 0) {
    throw Error(fmt::format("the model's logits at position {} are not finite", not_finite.load()));
  }
  return result;
}

}  // namespace litecache::engine
