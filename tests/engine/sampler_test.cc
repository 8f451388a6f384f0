// Compares the sampler with exact probabilities, computed in double by a plain reference.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "test_seed.h"

namespace litecache::engine {
namespace {

using testing::TestRandom;

// The definition in Sampler's documentation, implemented with full sorts and doubles.
std::vector<double> ExactProbabilities(const std::vector<float>& logits,
                                       const SamplingParams& params,
                                       const std::vector<int32_t>& prompt,
                                       const std::vector<int32_t>& generated) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) x[static_cast<size_t>(token)] += bias;
  std::map<int32_t, int> counts;
  for (int32_t token : generated) ++counts[token];
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(generated.begin(), generated.end());
  for (int32_t token : seen) {
    double& value = x[static_cast<size_t>(token)];
    value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
  }
  for (const auto& [token, count] : counts) {
    x[static_cast<size_t>(token)] -= params.frequency_penalty * count + params.presence_penalty;
  }
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  std::vector<double> p(x.size(), 0.0);
  if (params.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  for (size_t i : order) p[i] = std::exp((x[i] - x[order[0]]) / params.temperature);
  const auto normalize = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  normalize();
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0;
    normalize();
  }
  double sum = 0;
  if (params.top_p < 1) {
    for (size_t i : order) {
      if (sum >= params.top_p) p[i] = 0;
      sum += p[i];
    }
    normalize();
  }
  for (double& value : p) {
    if (value < params.min_p * p[order[0]]) value = 0;
  }
  normalize();
  return p;
}

// The probability of a chi-square statistic at least this large, by Wilson and Hilferty's normal
// approximation.
double ChiSquareTail(double statistic, double degrees) {
  const double z =
      (std::cbrt(statistic / degrees) - (1 - 2 / (9 * degrees))) / std::sqrt(2 / (9 * degrees));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

std::vector<float> RandomLogits(std::mt19937_64& random, size_t vocab, float spread = 2) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Draws `draws` first tokens with different seeds and compares their frequencies.
void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params,
                        const std::vector<int32_t>& prompt, std::mt19937_64& random,
                        const char* what) {
  constexpr int kDraws = 40000;
  const std::vector<double> exact = ExactProbabilities(logits, params, prompt, {});
  std::vector<int> counts(logits.size());
  SamplerScratch scratch;
  for (int i = 0; i < kDraws; ++i) {
    Sampler sampler(params, random(), i % 3, prompt);
    ++counts[static_cast<size_t>(sampler.Sample(logits, &scratch))];
  }
  // Tokens expected fewer than five times are counted together, as the chi-square test requires.
  double statistic = 0, rare_expected = 0;
  int degrees = -1, rare = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == 0) {
      ASSERT_EQ(counts[i], 0) << what << ": token " << i << " is impossible";
    }
    const double expected = exact[i] * kDraws;
    if (expected < 5) {
      rare_expected += expected;
      rare += counts[i];
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++degrees;
  }
  if (rare_expected >= 5) {
    statistic += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
    ++degrees;
  }
  if (degrees < 1) return;
  // 12 tests per run: one false alarm in ten million runs.
  EXPECT_GT(ChiSquareTail(statistic, degrees), 1e-8)
      << what << ": chi-square " << statistic << " with " << degrees << " degrees of freedom";
}

TEST(Sampler, TokensThatAreTakenBackLeaveNothing) {
  auto random = TestRandom(71);
  constexpr int kVocab = 12;
  std::normal_distribution<float> normal;
  for (int life = 0; life < 100; ++life) {
    SamplingParams params;
    params.temperature = random() % 3 == 0 ? 0 : 1.2;
    if (random() % 4 != 0) params.repetition_penalty = 1.5;
    if (random() % 2 == 0) params.frequency_penalty = 0.7;
    const std::vector<int32_t> prompt = {3, 5, 3};
    Sampler with(params, 9, 0, prompt), without(params, 9, 0, prompt);
    SamplerScratch scratch;
    const auto row = [&] {
      std::vector<float> logits(kVocab);
      for (float& x : logits) x = normal(random);
      return logits;
    };
    for (int token = 0; token < 20; ++token) {
      std::vector<int32_t> drafted;
      for (size_t i = random() % 5; i > 0; --i) drafted.push_back(with.Sample(row(), &scratch));
      for (; !drafted.empty(); drafted.pop_back()) with.TakeBack(drafted.back());
      const std::vector<float> logits = row();
      ASSERT_EQ(with.Sample(logits, &scratch), without.Sample(logits, &scratch));
      ASSERT_EQ(with.seen().size(), without.seen().size());
      for (size_t i = 0; i < with.seen().size(); ++i) {
        EXPECT_EQ(with.seen()[i].token, without.seen()[i].token);
        EXPECT_EQ(with.seen()[i].generated, without.seen()[i].generated);
      }
    }
  }
}

TEST(Sampler, DrawsFromTheExactDistribution) {
  auto random = TestRandom(1);
  const std::vector<int32_t> prompt = {1, 2, 3, 3, 70};
  const struct {
    const char* name;
    SamplingParams params;
  } kCases[] = {
      {"plain", {}},
      {"cold", {.temperature = 0.5}},
      {"hot", {.temperature = 2.5}},
      {"top-k", {.temperature = 1.3, .top_k = 7}},
      {"top-k beyond the vocabulary", {.top_k = 100000}},
      {"top-p", {.top_p = 0.8}},
      {"top-p near one", {.temperature = 3, .top_p = 0.999}},
      {"min-p", {.min_p = 0.05}},
      {"top-k, top-p", {.top_k = 20, .top_p = 0.7}},
      {"all filters", {.temperature = 1.7, .top_k = 30, .top_p = 0.95, .min_p = 0.02}},
      {"top-p, min-p", {.temperature = 1.5, .top_p = 0.97, .min_p = 0.01}},
      {"bias and penalties",
       {.temperature = 1.1,
        .top_p = 0.9,
        .repetition_penalty = 1.4,
        .presence_penalty = 0.5,
        .frequency_penalty = 0.3,
        .logit_bias = {{5, 3.0f}, {70, -2.0f}, {0, -100.0f}}}},
  };
  for (const auto& [name, params] : kCases) {
    // 1500 is more than one block of weights; 128 candidates are too few for the nucleus of "hot".
    const size_t vocab = random() % 2 == 0 ? 150 + random() % 100 : 1500 + random() % 100;
    ExpectDistribution(RandomLogits(random, vocab), params, prompt, random, name);
  }
}

TEST(Sampler, PenaltiesFollowThePlainReferenceTokenByToken) {
  auto random = TestRandom(2);
  SamplerScratch scratch;
  for (int round = 0; round < 50; ++round) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    SamplingParams params;
    params.temperature = 0;  // greedy: the token is the argmax of the adjusted logits
    params.repetition_penalty = 1.0 + 0.5 * uniform(random);
    params.presence_penalty = uniform(random);
    params.frequency_penalty = uniform(random);
    params.logit_bias = {{3, static_cast<float>(uniform(random))}, {3, 1.0f}, {9, 0.5f}};
    std::vector<int32_t> prompt, generated;
    for (int i = 0; i < 10; ++i) prompt.push_back(static_cast<int32_t>(random() % 40));
    Sampler sampler(params, 1, 0, prompt);
    for (int i = 0; i < 60; ++i) {
      const std::vector<float> logits = RandomLogits(random, 40);
      const auto exact = ExactProbabilities(logits, params, prompt, generated);
      const auto expected =
          static_cast<int32_t>(std::max_element(exact.begin(), exact.end()) - exact.begin());
      ASSERT_EQ(sampler.Sample(logits, &scratch), expected) << "round " << round << " token " << i;
      generated.push_back(expected);
    }
  }
}

TEST(Sampler, EdgesOfTheFilters) {
  auto random = TestRandom(3);
  SamplerScratch scratch;
  const std::vector<float> logits = RandomLogits(random, 500);
  const auto best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const auto only_best = [&](const SamplingParams& params) {
    for (int i = 0; i < 200; ++i) {
      Sampler sampler(params, random(), 0, {});
      if (sampler.Sample(logits, &scratch) != best) return false;
    }
    return true;
  };
  EXPECT_TRUE(only_best({.temperature = 0}));
  EXPECT_TRUE(only_best({.temperature = 1e-9}));
  EXPECT_TRUE(only_best({.temperature = 5, .top_k = 1}));
  EXPECT_TRUE(only_best({.temperature = 5, .top_p = 1e-9}));
  EXPECT_TRUE(only_best({.temperature = 5, .min_p = 1.0}));
  EXPECT_FALSE(only_best({.temperature = 5}));
  // Equal logits: top-k keeps exactly k tokens, the lower ones.
  const std::vector<float> flat(300, 1.5f);
  std::set<int32_t> drawn;
  for (int i = 0; i < 500; ++i) {
    Sampler sampler({.top_k = 4}, random(), 0, {});
    drawn.insert(sampler.Sample(flat, &scratch));
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 2, 3}));
  // A vocabulary of one token.
  const std::vector<float> one = {-7.0f};
  Sampler sampler({.temperature = 0.7, .top_k = 3, .top_p = 0.5, .min_p = 0.1}, 1, 0, {});
  EXPECT_EQ(sampler.Sample(one, &scratch), 0);
  // Large differences underflow to zero probability, never to a crash.
  std::vector<float> steep(2000, -3e38f);
  steep[1234] = 3e38f;
  for (int i = 0; i < 100; ++i) {
    Sampler hot({.temperature = 2}, random(), 0, {});
    EXPECT_EQ(hot.Sample(steep, &scratch), 1234);
  }
}

TEST(Sampler, SameSeedSameTokensWhateverHappensBeside) {
  auto random = TestRandom(4);
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 50; ++i) rows.push_back(RandomLogits(random, 300));
  const SamplingParams params{.temperature = 1.5, .top_p = 0.95};
  const auto run = [&](uint64_t seed, int sample, SamplerScratch* scratch) {
    Sampler sampler(params, seed, sample, {});
    std::vector<int32_t> tokens;
    for (const auto& row : rows) tokens.push_back(sampler.Sample(row, scratch));
    return tokens;
  };
  SamplerScratch one, two;
  const auto first = run(42, 0, &one);
  run(7, 3, &one);  // changes the contents of the scratch
  EXPECT_EQ(run(42, 0, &one), first);
  EXPECT_EQ(run(42, 0, &two), first);
  EXPECT_NE(run(42, 1, &two), first);
  EXPECT_NE(run(43, 0, &two), first);
}

}  // namespace
}  // namespace litecache::engine
