// EngineOptions::deterministic on the shipped model in its own bf16: a request gets the same tokens
// alone, among others, and after a kept prefix.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/deterministic_checks.h"
#include "litecache/engine.h"

namespace litecache {
namespace {

using engine::Answers;
using engine::Deterministic;
using engine::DeterministicRequests;

class DeterministicTest : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions Options() const {
    EngineOptions options = Deterministic(GetParam());
    options.device = "cpu";
    options.threads = 2;
    return options;
  }
};

TEST_P(DeterministicTest, RequestsBesideItDoNotChangeAnAnswer) {
  const auto alone = Engine::Load(engine::DemoModel(), Options());
  const std::vector<Request> requests = DeterministicRequests(alone->tokenizer());
  const Answers want = Answers::OneByOne(*alone, requests);
  const auto busy = Engine::Load(engine::DemoModel(), Options());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Answers::Together(*busy, requests), want);
}

// Rows of a prefix in 8-bit codes are what later chunks of the prompt itself attend.
TEST_P(DeterministicTest, KeptPrefixesDoNotChangeAnAnswer) {
  EngineOptions options = Options();
  if (GetParam() == "litecache") options.kv.host_rows = "int8";
  const auto alone = Engine::Load(engine::DemoModel(), options);
  const std::vector<Request> requests = DeterministicRequests(alone->tokenizer());
  const Answers want = Answers::OneByOne(*alone, requests);
  options.prefix_cache = true;
  const auto keeps = Engine::Load(engine::DemoModel(), options);
  EXPECT_EQ(Answers::Together(*keeps, requests), want);
  EXPECT_EQ(Answers::OneByOne(*keeps, requests), want);
  EXPECT_GT(keeps->Stats().prefix.tokens, 3000);
}

TEST_P(DeterministicTest, RequestsBesideItDoNotChangeAScore) {
  const auto scorer = Engine::Load(engine::DemoModel(), Options());
  const std::vector<Request> requests = DeterministicRequests(scorer->tokenizer());
  const auto longest = std::ranges::max_element(
      requests, {}, [](const Request& request) { return request.prompt.size(); });
  for (const int64_t decode_from : {-1, 300}) {
    const ScoreRequest request{.tokens = longest->prompt, .decode_from = decode_from};
    const std::vector<float> want = scorer->Score(request).token_nll;
    std::vector<std::vector<float>> got(2);
    {
      std::vector<std::jthread> threads;
      for (auto& nll : got) threads.emplace_back([&] { nll = scorer->Score(request).token_nll; });
      threads.emplace_back([&] { Answers::Together(*scorer, requests); });
    }
    for (const auto& nll : got) EXPECT_EQ(nll, want);
  }
}

// They are cut into fewer rows than a chunk where the vocabulary is large.
TEST_P(DeterministicTest, PromptsWithLogProbabilitiesAreNotShared) {
  EngineOptions options = Options();
  options.prefix_cache = true;
  const auto keeps = Engine::Load(engine::DemoModel(), options);
  Request request = DeterministicRequests(keeps->tokenizer()).back();
  request.n = 1;
  request.max_tokens = 2;
  const auto cached = [&] {
    const auto handle = keeps->Submit(request);
    while (handle->Next()) {
    }
    return handle->Stats().cached_tokens;
  };
  request.prompt_logprobs = 0;
  EXPECT_EQ(cached(), 0);
  request.prompt_logprobs = -1;
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 640);  // of 680 tokens, in chunks of 128
}

INSTANTIATE_TEST_SUITE_P(Policies, DeterministicTest, ::testing::Values("full", "litecache"));

TEST(Deterministic, OtherPoliciesRefuseIt) {
  for (const char* policy : {"streaming", "kvpr"}) {
    EXPECT_THROW(Engine::Load(engine::DemoModel(), Deterministic(policy)), InvalidArgument);
  }
}

}  // namespace
}  // namespace litecache
