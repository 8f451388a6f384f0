// Sequences that go on from the same prompt share what it left in the cache, and nothing else.
#include <gtest/gtest.h>

#include "model/device_fixture.h"
#include "reference.h"

namespace litecache::model {
namespace {

constexpr int64_t kPrompt = 150;
constexpr int32_t kSteps = 5;

class ForksTest : public OnDevice {};

TEST_P(ForksTest, GoOnAsIfTheyWereAlone) {
  const auto decoder = LoadDecoder(device(), FixturesDirectory() / name(), {.dtype = DType::kF32});
  const int64_t vocab = decoder->config().vocab;
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < kPrompt; ++i) {
    prompt.push_back(static_cast<int32_t>((i * 37 + 5) % vocab));
  }
  const auto token = [&](int64_t child, int32_t step) {
    return static_cast<int32_t>((child * 71 + step * 13 + 7) % vocab);
  };
  Runner runner(device(), *decoder);
  const auto prefill = [&] {
    const kv::SequenceId id = runner.Create();
    runner.Prefill(id, prompt, 64, {});
    return id;
  };
  // Each alone, with a prompt of its own.
  std::vector<std::vector<float>> alone;
  for (int64_t child = 0; child < 3; ++child) {
    const kv::SequenceId id = prefill();
    std::vector<float>& all = alone.emplace_back();
    for (int32_t step = 0; step < kSteps; ++step) {
      const auto logits = runner.Step({{id, {token(child, step)}, {0}, true}});
      all.insert(all.end(), logits.begin(), logits.end());
    }
  }
  // Two forks and their parent, in the same steps; the parent is released in between.
  const kv::SequenceId parent = prefill();
  const std::vector<kv::SequenceId> ids = {parent, runner.cache().Fork(parent),
                                           runner.cache().Fork(parent)};
  std::vector<std::vector<float>> together(ids.size());
  for (int32_t step = 0; step < kSteps; ++step) {
    if (step == kSteps / 2) runner.cache().Release(parent);
    std::vector<Runner::Part> parts;
    const size_t first = step < kSteps / 2 ? 0 : 1;
    for (size_t child = first; child < ids.size(); ++child) {
      parts.push_back({ids[child], {token(static_cast<int64_t>(child), step)}, {0}, true});
    }
    const auto logits = runner.Step(parts);
    for (size_t child = first; child < ids.size(); ++child) {
      const auto row = std::span(logits).subspan((child - first) * static_cast<size_t>(vocab),
                                                 static_cast<size_t>(vocab));
      together[child].insert(together[child].end(), row.begin(), row.end());
    }
  }
  for (size_t child = 0; child < ids.size(); ++child) {
    EXPECT_LT(RelativeError(together[child], std::span(alone[child]).first(together[child].size())),
              1e-4)
        << "sequence " << child;
  }
}

// Forks for prefixes, of windows and states as a whole, go on with other prompts.
TEST_P(ForksTest, OfPrefixesGoOnAsIfTheyWereAlone) {
  const auto decoder = LoadDecoder(device(), FixturesDirectory() / name(), {.dtype = DType::kF32});
  const int64_t vocab = decoder->config().vocab;
  constexpr int64_t kShared = 96, kChunk = 48;
  const auto prompt = [&](int64_t child) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kPrompt; ++i) {
      tokens.push_back(static_cast<int32_t>((i * 37 + (i < kShared ? 0 : child * 11) + 5) % vocab));
    }
    return tokens;
  };
  const std::vector<int32_t> rows = {kShared, kPrompt - 1};
  Runner runner(device(), *decoder);
  std::vector<std::vector<float>> alone;
  for (int64_t child = 0; child < 3; ++child) {
    alone.push_back(runner.Prefill(runner.Create(), prompt(child), kChunk, rows));
  }
  const kv::SequenceId parent = runner.Create();
  const std::vector<int32_t> shared = prompt(0);
  runner.Prefill(parent, std::span(shared).first(kShared), kChunk, {});
  ASSERT_EQ(runner.cache().PrefixLength(parent), kShared);
  const kv::SequenceId first = runner.cache().ForkPrefix(parent, kShared);
  const kv::SequenceId second = runner.cache().ForkPrefix(first, kShared);
  const auto rest = [&](int64_t child, kv::SequenceId id) {
    const std::vector<int32_t> tokens = prompt(child);
    return runner.Prefill(id, std::span(tokens).subspan(kShared), kChunk,
                          std::vector<int32_t>{0, kPrompt - 1 - kShared});
  };
  EXPECT_LT(RelativeError(rest(0, parent), alone[0]), 1e-4);
  runner.cache().Release(parent);
  EXPECT_LT(RelativeError(rest(1, first), alone[1]), 1e-4);
  EXPECT_LT(RelativeError(rest(2, second), alone[2]), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, ForksTest,
                         ::testing::Combine(::testing::Values("llama", "gemma3_text", "gemma4_text",
                                                              "gpt_oss", "qwen3_5_text", "cohere2"),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

}  // namespace
}  // namespace litecache::model
