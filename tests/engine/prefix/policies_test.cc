// Every policy with kept prefixes: the same tokens as without, and no page leaked.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/prefix/prefix_rig.h"
#include "temporary_directory.h"

namespace litecache::engine {
namespace {

using testing::TemporaryDirectory;

class EveryPolicy : public ::testing::TestWithParam<KvOptions> {};

TEST_P(EveryPolicy, PromptsThatShareAPrefixGetTheTokensOfFreshOnes) {
  auto random = TestRandom(101);
  PrefixRig shared(GetParam()), fresh(GetParam(), std::nullopt);
  std::vector<std::vector<int32_t>> prompts;
  int64_t cached = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt;
    if (!prompts.empty() && random() % 4 != 0) {
      prompt = prompts[random() % prompts.size()];
      prompt.resize(1 + random() % prompt.size());
    }
    const auto tail = Tokens(random, static_cast<int64_t>(random() % 150) + prompt.empty());
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompts.push_back(prompt);
    const Request request = Greedy(prompt, 1 + static_cast<int64_t>(random() % 30));
    const Result with = Answered(shared, request);
    EXPECT_EQ(with.tokens, Answered(fresh, request).tokens) << "request " << i;
    EXPECT_EQ(with.stats.prompt_tokens, static_cast<int64_t>(prompt.size()));
    EXPECT_LT(with.stats.cached_tokens, with.stats.prompt_tokens);
    EXPECT_EQ(with.stats.cached_tokens % kv::kPrefixTokens, 0);
    cached += with.stats.cached_tokens;
    shared.ExpectIdle();
  }
  EXPECT_GT(cached, 0);
  EXPECT_EQ(shared.core().Stats().prefix.tokens, cached);
  EXPECT_EQ(shared.rows + cached, fresh.rows);
  EXPECT_EQ(fresh.core().Stats().prefix.requests, 0);
}

TEST_P(EveryPolicy, ManyAtOnceFillTheMemoryAndLoseNothing) {
  auto random = TestRandom(102);
  // Memory for three of the longest requests: kept prefixes are evicted repeatedly.
  PrefixRig shared(GetParam(), PrefixOptions{}, 540, 48, 3), fresh(GetParam(), std::nullopt);
  std::vector<std::vector<int32_t>> roots;
  for (int i = 0; i < 4; ++i) roots.push_back(Tokens(random, 300));
  for (int round = 0; round < 4; ++round) {
    std::vector<Job> jobs;
    for (int i = 0; i < 24; ++i) {
      std::vector<int32_t> prompt = roots[random() % roots.size()];
      prompt.resize(1 + random() % prompt.size());
      const auto tail = Tokens(random, static_cast<int64_t>(random() % 200));
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      Request request = Greedy(prompt, 1 + static_cast<int64_t>(random() % 40));
      request.n = random() % 5 == 0 ? 3 : 1;
      const bool cancel = random() % 4 == 0;
      jobs.push_back({request, shared.core().Submit(request), cancel});
    }
    ScoreRequest score;
    score.tokens = roots[0];
    const ScoreResult scored = shared.core().Score(score, {});
    // Chunks that end at other positions are rounded differently.
    const ScoreResult expected_score = fresh.core().Score(score, {});
    ASSERT_EQ(scored.token_nll.size(), expected_score.token_nll.size());
    for (size_t t = 0; t < scored.token_nll.size(); ++t) {
      EXPECT_NEAR(scored.token_nll[t], expected_score.token_nll[t], 1e-4) << t;
    }
    FinishJobs(&jobs, fresh);
    shared.ExpectIdle();
  }
  EXPECT_GT(shared.core().Stats().prefix.evictions, 0);
  EXPECT_GT(shared.core().Stats().prefix.tokens, 0);
}

TEST_P(EveryPolicy, ARestartReadsKnownPrefixesFromTheStore) {
  auto random = TestRandom(103);
  const TemporaryDirectory directory;
  const PrefixOptions options{directory.path(), uint64_t{1} << 30, ""};
  PrefixRig fresh(GetParam(), std::nullopt);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = Tokens(random, 200 + static_cast<int64_t>(random() % 1800));
    requests.push_back(Greedy(prompt, 12));
  }
  std::vector<std::vector<int32_t>> answers;
  {
    PrefixRig first(GetParam(), options);
    for (const Request& request : requests) answers.push_back(Answered(first, request).tokens);
  }
  PrefixRig second(GetParam(), options, 1 << 16, 64);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const Request& request : requests) handles.push_back(second.core().Submit(request));
  int64_t cached = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(ReadAll(*handles[i])[0].tokens, answers[i]);
    const int64_t prompt = static_cast<int64_t>(requests[i].prompt.size());
    EXPECT_EQ(handles[i]->Stats().cached_tokens, (prompt - 1) / 256 * 256);
    EXPECT_EQ(answers[i], Answered(fresh, requests[i]).tokens);
    cached += handles[i]->Stats().cached_tokens;
  }
  EXPECT_GT(cached, 0);
  EXPECT_EQ(second.core().Stats().prefix.tokens_loaded, cached);
  second.ExpectIdle();
  // Blocks in memory are not read again.
  for (const Request& request : requests) {
    const Result again = Answered(second, request);
    EXPECT_GE(again.stats.cached_tokens + 16, again.stats.prompt_tokens - 1);
  }
  EXPECT_EQ(second.core().Stats().prefix.tokens_loaded, cached);
  // Rows of another model or another policy are not reused.
  second.Close();
}

std::string NameOf(const ::testing::TestParamInfo<KvOptions>& info) {
  return info.param.policy == "full" ? "full" : info.param.retriever;
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         ::testing::Values(Policy("full"), Policy("litecache", "exact"),
                                           Policy("litecache", "hata"), Policy("litecache", "keys"),
                                           Policy("litecache", "quest"),
                                           Policy("litecache", "loki")),
                         NameOf);

}  // namespace
}  // namespace litecache::engine
