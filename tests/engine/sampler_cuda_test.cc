// Compares the tokens that the GPU samples with those of the host's sampler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "engine/gpu_sampler_cuda.h"
#include "engine/logits.h"
#include "ops/gpu_testing_cuda.h"
#include "ops/sample/arg_max_cuda.h"
#include "test_seed.h"
#include "test_size.h"

namespace litecache::engine {
namespace {

using Status = DeviceToken::Status;

class GpuSamplerTest : public ops::cuda::GpuTest {
 protected:
  // Logits of `rows` rows on the GPU, and a sampler for them.
  void Begin(int64_t rows, int64_t vocab, int64_t tokens) {
    vocab_ = vocab;
    logits_ = gpu_->CreateMirror(static_cast<size_t>(rows * vocab) * sizeof(float));
    sampler_ = std::make_unique<GpuSampler>(*gpu_, *stream_, *logits_, tokens, vocab);
  }
  std::span<float> Row(int64_t row) {
    return {logits_->host<float>() + row * vocab_, static_cast<size_t>(vocab_)};
  }
  void Send(int64_t rows) {
    logits_->Send(*stream_, static_cast<size_t>(rows * vocab_) * sizeof(float));
  }
  void Issue() {
    sampler_->Issue(*stream_);
    stream_->Synchronize();
  }

  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

  SamplingParams RandomParams() {
    SamplingParams params;
    params.temperature = OneOf({0.0, 0.3, 0.7, 1.0, 1.7});
    if (random_() % 3 == 0) params.top_k = 1 + static_cast<int>(random_() % 300);
    if (random_() % 3 == 0) params.top_p = Uniform(0.05, 1);
    if (random_() % 3 == 0) params.min_p = Uniform(0, 0.3);
    if (random_() % 3 == 0) params.repetition_penalty = Uniform(0.8, 1.5);
    if (random_() % 3 == 0) params.presence_penalty = Uniform(-1, 1);
    if (random_() % 3 == 0) params.frequency_penalty = Uniform(-1, 1);
    for (uint64_t i = random_() % 3 * 5; i > 0; --i) {
      params.logit_bias.emplace_back(Token(), static_cast<float>(Uniform(-20, 5)));
    }
    return params;
  }
  // A mask that allows at least one token.
  std::vector<uint32_t> RandomMask() {
    std::vector<uint32_t> mask(static_cast<size_t>(vocab_ + 31) / 32);
    const uint64_t one_in = OneOf<uint64_t>({2, 50, 2000});
    const auto allow = [&](int64_t token) {
      mask[static_cast<size_t>(token / 32)] |= 1u << (token % 32);
    };
    for (int64_t token = 0; token < vocab_; ++token) {
      if (random_() % one_in == 0) allow(token);
    }
    allow(Token());
    return mask;
  }
  int32_t Token() { return static_cast<int32_t>(random_() % static_cast<uint64_t>(vocab_)); }

  std::mt19937_64 random_ = testing::TestRandom(41);
  std::unique_ptr<Mirror> logits_;
  std::unique_ptr<GpuSampler> sampler_;
  int64_t vocab_ = 0;
};

// Samples several tokens in sequence, so that penalties have an effect. The largest vocabulary does
// not fit into shared memory.
TEST_F(GpuSamplerTest, ChoosesWhatTheHostChooses) {
  int64_t compared = 0, undecided = 0;
  for (const int32_t largest :
       {1, 2, 97, 1023, 1025, 8191, 32000, 50257, 128256, 151936, 262144, 400001}) {
    const int64_t vocab = testing::Tokens(largest);
    if (vocab < largest) break;  // this size has already been tested
    const int64_t rows = vocab > 200000 ? 5 : testing::Rounds(37);
    Begin(rows, vocab, 64);
    std::vector<Sampler> samplers;
    for (int64_t row = 0; row < rows; ++row) {
      std::normal_distribution<float> normal(0, OneOf({1.0f, 3.0f, 6.0f}));
      const bool ties = random_() % 3 == 0;
      for (float& x : Row(row)) x = ties ? std::round(normal(random_)) : normal(random_);
      std::vector<int32_t> prompt(random_() % 200);
      for (int32_t& token : prompt) token = Token();
      samplers.emplace_back(RandomParams(), random_(), static_cast<int>(random_() % 4), prompt);
    }
    Send(rows);
    SamplerScratch scratch;
    for (int step = 0; step < testing::Rounds(5); ++step) {
      sampler_->Clear();
      std::vector<std::vector<uint32_t>> masks(static_cast<size_t>(rows));
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<uint32_t>& mask = masks[static_cast<size_t>(row)];
        if (random_() % 4 == 0) mask = RandomMask();
        ASSERT_EQ(sampler_->Add(samplers[static_cast<size_t>(row)], row, row % 2 == 0, mask), row);
      }
      Issue();
      for (int64_t row = 0; row < rows; ++row) {
        Sampler& sampler = samplers[static_cast<size_t>(row)];
        scratch.allowed = masks[static_cast<size_t>(row)];
        const bool masked = !scratch.allowed.empty();
        const int32_t want =
            masked ? sampler.SampleAllowed(Row(row), &scratch) : sampler.Sample(Row(row), &scratch);
        const DeviceToken got = sampler_->token(row);
        const SamplingParams& params = sampler.params();
        SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab << " row " << row << " step "
                                          << step << " temperature " << params.temperature
                                          << " top_k " << params.top_k << " top_p " << params.top_p
                                          << " min_p " << params.min_p << " masked " << masked);
        if (got.status == Status::kUndecided) {
          ++undecided;
          EXPECT_TRUE(params.top_p < 1 || params.min_p > 0);
          continue;
        }
        ++compared;
        ASSERT_EQ(got.status, Status::kChosen);
        ASSERT_EQ(got.token, want) << Row(row)[static_cast<size_t>(got.token)] << " and "
                                   << Row(row)[static_cast<size_t>(want)];
        if (row % 2 != 0) continue;
        const double logprob = LogprobOf(Row(row), want, LogSumExp(Row(row))).logprob;
        ASSERT_NEAR(got.logprob, logprob, 1e-5 * (1 + std::abs(logprob)));
      }
    }
  }
  std::cout << compared << " tokens compared, " << undecided << " left to the host\n";
  EXPECT_LE(undecided, compared / 5 + 1);
}

// Tokens drawn from one row have the frequencies of its softmax.
TEST_F(GpuSamplerTest, DrawsHaveTheirProbabilities) {
  constexpr int64_t kVocab = 61, kRows = 512, kSteps = 60;
  Begin(1, kVocab, kRows);
  std::normal_distribution<float> normal(0, 1);
  for (float& x : Row(0)) x = normal(random_);
  Send(1);
  for (const bool nucleus : {false, true}) {
    SamplingParams params;
    params.temperature = 0.9;
    params.top_p = nucleus ? 0.8 : 1.0;
    std::vector<Sampler> samplers;
    for (int64_t row = 0; row < kRows; ++row) {
      samplers.emplace_back(params, random_(), 0, std::vector<int32_t>());
    }
    std::vector<double> counts(kVocab);
    for (int64_t step = 0; step < kSteps; ++step) {
      sampler_->Clear();
      for (const Sampler& sampler : samplers) ASSERT_GE(sampler_->Add(sampler, 0, false, {}), 0);
      Issue();
      for (int64_t row = 0; row < kRows; ++row) {
        const DeviceToken token = sampler_->token(row);
        ASSERT_EQ(token.status, Status::kChosen);
        counts.at(static_cast<size_t>(token.token)) += 1;
        samplers[static_cast<size_t>(row)].Accept(token.token);
      }
    }
    // The nucleus, computed directly.
    std::vector<size_t> order(kVocab);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return Row(0)[a] > Row(0)[b]; });
    std::vector<double> weights(kVocab);
    double total = 0, kept = 0;
    for (size_t i : order) total += std::exp(double{Row(0)[i]} / params.temperature);
    for (size_t i : order) {
      if (kept >= params.top_p * total) break;
      weights[i] = std::exp(double{Row(0)[i]} / params.temperature);
      kept += weights[i];
    }
    double chi_square = 0, freedom = -1;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i;
        continue;
      }
      const double expected = weights[i] / kept * kRows * kSteps;
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++freedom;
    }
    EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom)) << "nucleus " << nucleus;
  }
}

TEST_F(GpuSamplerTest, SaysWhatItCannotDo) {
  constexpr int64_t kVocab = 50257;
  Begin(5, kVocab, 4);
  for (int64_t row = 0; row < 5; ++row) {
    for (float& x : Row(row)) x = static_cast<float>(Uniform(0, 0.01));
  }
  Row(1)[random_() % kVocab] = std::nanf("");
  Row(2)[random_() % kVocab] = -std::numeric_limits<float>::infinity();
  Send(5);
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingParams flat;
  flat.top_p = 0.99;
  SamplingParams many;
  many.top_k = ops::cuda::kMostCandidates + 1;
  const std::vector<int32_t> prompt;
  EXPECT_EQ(sampler_->Add(Sampler(many, 1, 0, prompt), 0, false, {}), -1);
  std::vector<uint32_t> nothing((kVocab + 31) / 32);
  nothing.back() = ~0u << (kVocab % 32);  // allows only bits after the last token
  EXPECT_EQ(sampler_->Add(Sampler(greedy, 1, 0, prompt), 0, false, nothing), -1);
  EXPECT_EQ(sampler_->Add(Sampler(greedy, 1, 0, prompt), 1, false, {}), 0);
  EXPECT_EQ(sampler_->Add(Sampler(flat, 1, 0, prompt), 2, false, {}), 1);
  EXPECT_EQ(sampler_->Add(Sampler(flat, 1, 0, prompt), 3, false, {}), 2);
  EXPECT_EQ(sampler_->Add(Sampler(greedy, 1, 0, prompt), 4, false, {}), 3);
  EXPECT_EQ(sampler_->Add(Sampler(greedy, 1, 0, prompt), 4, false, {}), -1) << "there is no room";
  Issue();
  EXPECT_EQ(sampler_->token(0).status, Status::kNotFinite);
  EXPECT_EQ(sampler_->token(1).status, Status::kNotFinite);
  EXPECT_EQ(sampler_->token(2).status, Status::kUndecided);
  EXPECT_EQ(sampler_->token(3).status, Status::kChosen);
  EXPECT_EQ(sampler_->token(3).token, ArgMax(Row(4)));
}

// The host can request a single row.
TEST_F(GpuSamplerTest, ReceivesOneRow) {
  constexpr int64_t kVocab = 1013, kRows = 5;
  Begin(kRows, kVocab, 4);
  for (int64_t row = 0; row < kRows; ++row) {
    for (float& x : Row(row)) x = static_cast<float>(Uniform(-5, 5));
  }
  Send(kRows);
  stream_->Synchronize();
  const std::vector<float> sent(Row(0).data(), Row(0).data() + kRows * kVocab);
  std::fill_n(Row(0).data(), kRows * kVocab, 0.0f);
  sampler_->Receive(*stream_, 1, 2);
  stream_->Synchronize();
  for (int64_t i = 0; i < kRows * kVocab; ++i) {
    const bool received = i / kVocab == 1 || i / kVocab == 2;
    ASSERT_EQ(Row(0).data()[i], received ? sent[static_cast<size_t>(i)] : 0.0f) << i;
  }
}

}  // namespace
}  // namespace litecache::engine
