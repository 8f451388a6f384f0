// The chunks of a prompt, and the other sequences of a step, change nothing but rounding.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "reference.h"
#include "test_seed.h"

namespace litecache::model {
namespace {

// Different row counts use different matrix kernels, which add in another order. In f32 that is a
// few units of 2^-24; with bf16 inputs a sum that falls on the other side of a rounding boundary
// moves an activation by 2^-8, so the bound is the same as against Transformers.
double Bound(const Decoder& decoder) { return decoder.kv_dtype() == DType::kBF16 ? 2e-2 : 1e-4; }

struct Case {
  const char* fixture;
  bool compute_f32;
};

class BatchTest : public ::testing::TestWithParam<Case> {
 protected:
  BatchTest()
      : decoder_(LoadDecoder(device_, FixturesDirectory() / GetParam().fixture,
                             {.dtype = InF32(GetParam().compute_f32)})),
        random_(::litecache::testing::TestRandom()) {}

  std::vector<int32_t> RandomTokens(int64_t count) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(random_() % decoder_->config().vocab));
    }
    return tokens;
  }

  CpuDevice device_{2};
  std::unique_ptr<Decoder> decoder_;
  std::mt19937_64 random_;
};

TEST_P(BatchTest, ChunkedPrefillEqualsWholePrefill) {
  const std::vector<int32_t> tokens = RandomTokens(150);
  const std::vector<int32_t> rows = {0, 1, 6, 7, 62, 63, 64, 100, 127, 128, 149};
  Runner whole(device_, *decoder_);
  const auto expected = whole.Prefill(whole.Create(), tokens, 150, rows);
  for (const int64_t chunk : {1, 7, 64, 149}) {
    Runner runner(device_, *decoder_);
    const kv::SequenceId sequence = runner.Create();
    EXPECT_LT(RelativeError(runner.Prefill(sequence, tokens, chunk, rows), expected),
              Bound(*decoder_))
        << "chunks of " << chunk;
    EXPECT_EQ(runner.cache().Length(sequence), 150);
  }
}

TEST_P(BatchTest, MixedBatchesEqualSingleSequences) {
  // Three sequences of different lengths; steps mix decode rows with prefill chunks.
  const std::vector<std::vector<int32_t>> prompts = {RandomTokens(90), RandomTokens(33),
                                                     RandomTokens(5)};
  const std::vector<int32_t> continuation = RandomTokens(4);
  std::vector<std::vector<float>> expected;
  for (const auto& prompt : prompts) {
    Runner runner(device_, *decoder_);
    const kv::SequenceId sequence = runner.Create();
    runner.Prefill(sequence, prompt, 1000, {});
    std::vector<float> logits;
    for (const int32_t token : continuation) logits = runner.Step({{sequence, {token}, {0}}});
    expected.push_back(logits);
  }

  Runner runner(device_, *decoder_);
  const kv::SequenceId a = runner.Create();
  const kv::SequenceId b = runner.Create();
  const kv::SequenceId c = runner.Create();
  const auto slice = [&](size_t prompt, int64_t begin, int64_t end) {
    return std::vector<int32_t>(prompts[prompt].begin() + begin, prompts[prompt].begin() + end);
  };
  runner.Step({{a, slice(0, 0, 40), {}}, {c, slice(2, 0, 5), {4}}});
  runner.Step({{c, {continuation[0]}, {0}}, {a, slice(0, 40, 90), {}}, {b, slice(1, 0, 20), {}}});
  runner.Step({{c, {continuation[1]}, {}}, {a, {continuation[0]}, {0}}, {b, slice(1, 20, 33), {}}});
  runner.Step({{b, {continuation[0]}, {0}}, {a, {continuation[1]}, {0}}});
  runner.Step(
      {{b, {continuation[1]}, {}}, {a, {continuation[2]}, {}}, {c, {continuation[2]}, {0}}});
  runner.Step({{b, {continuation[2]}, {}}});
  const auto logits = runner.Step(
      {{a, {continuation[3]}, {0}}, {b, {continuation[3]}, {0}}, {c, {continuation[3]}, {0}}});
  const auto vocab = static_cast<size_t>(decoder_->config().vocab);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(RelativeError(std::span(logits).subspan(i * vocab, vocab), expected[i]),
              Bound(*decoder_))
        << "sequence " << i;
  }
}

TEST_P(BatchTest, LogitRowsInAnyOrder) {
  const std::vector<int32_t> tokens = RandomTokens(21);
  std::vector<int64_t> all(21);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> shuffled = all;
  std::ranges::shuffle(shuffled, random_);
  std::vector<int64_t> few = {20, 3, 7};
  const auto vocab = static_cast<size_t>(decoder_->config().vocab);
  const auto run = [&](const std::vector<int64_t>& rows) {
    Runner runner(device_, *decoder_);
    return runner.Step({{runner.Create(), tokens, rows}});
  };
  const auto expected = run(all);
  for (const auto& rows : {shuffled, few}) {
    const auto logits = run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LT(
          RelativeError(std::span(logits).subspan(i * vocab, vocab),
                        std::span(expected).subspan(static_cast<size_t>(rows[i]) * vocab, vocab)),
          Bound(*decoder_))
          << "row " << rows[i];
    }
  }
}

TEST_P(BatchTest, RefusesTokensAndPositionsOutOfRange) {
  Runner runner(device_, *decoder_);
  const kv::SequenceId sequence = runner.Create();
  const auto vocab = static_cast<int32_t>(decoder_->config().vocab);
  EXPECT_ERROR(runner.Step({{sequence, {0, vocab}, {1}}}), InvalidArgument, std::to_string(vocab),
               "vocabulary");
  EXPECT_ERROR(runner.Step({{sequence, {-1}, {0}}}), InvalidArgument, "-1");
  const auto context = decoder_->config().max_context;
  runner.Prefill(sequence, RandomTokens(context), 512, {});
  EXPECT_ERROR(runner.Step({{sequence, {0}, {0}}}), InvalidArgument, std::to_string(context),
               "context");
  EXPECT_EQ(runner.cache().Length(sequence), context);
}

TEST_P(BatchTest, WorkspaceGrowsWithRows) {
  EXPECT_GT(decoder_->WorkspaceBytes(1, 1), 0u);
  const uint64_t half = decoder_->WorkspaceBytes(512, 1);
  EXPECT_GE(decoder_->WorkspaceBytes(1024, 1), half + half * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Models, BatchTest,
                         ::testing::Values(Case{"llama", false}, Case{"llama", true},
                                           Case{"llama-llama3", false}, Case{"qwen3", false},
                                           Case{"olmo2", false}, Case{"phi3", false},
                                           Case{"smollm3", false}, Case{"glm4", true},
                                           Case{"granite", false}, Case{"gpt_oss", true},
                                           Case{"ernie4_5", true}, Case{"exaone4", false},
                                           Case{"cohere2", true}, Case{"hunyuan_v1_dense", true},
                                           Case{"qwen3_5_text", false}, Case{"opt", false},
                                           Case{"opt-post-norm", false}),
                         [](const auto& info) {
                           std::string name = info.param.fixture;
                           std::ranges::replace(name, '-', '_');
                           return name + (info.param.compute_f32 ? "_f32" : "");
                         });

}  // namespace
}  // namespace litecache::model
