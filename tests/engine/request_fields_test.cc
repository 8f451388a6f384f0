// What a request may ask for beside sampling: log-probabilities of its prompt, no answer at all,
// answers of a least length, without certain words, with what stopped them.
#include <gmock/gmock.h>

#include <cmath>

#include "engine/core_fixture.h"

namespace litecache::engine {
namespace {

// Logits of every row of a text, in one pass.
std::vector<float> WholePass(const std::vector<int32_t>& tokens) {
  ToyRig rig;
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<float> logits(tokens.size() * ToyDecoder::kVocab);
  std::vector<int32_t> places;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    places.push_back(static_cast<int32_t>(i));
    rows.push_back(i);
  }
  const kv::SequenceId id = rig.cache->Create();
  rig.decoder.Forward(*rig.stream, {{{id, 0, count, 0}}, count}, tokens, places, *rig.cache, rows,
                      MatrixView::Of(logits.data(), count, ToyDecoder::kVocab));
  rig.cache->Release(id);
  return logits;
}

std::vector<PromptLogprob> PromptLogprobsOf(const Answer& answer) {
  std::vector<PromptLogprob> all;
  for (const Chunk& chunk : answer.chunks) {
    all.insert(all.end(), chunk.prompt_logprobs.begin(), chunk.prompt_logprobs.end());
    if (!chunk.prompt_logprobs.empty()) {
      EXPECT_TRUE(chunk.tokens.empty());
    }
  }
  return all;
}

TEST(RequestFields, PromptLogprobsEqualAPassOverTheWholePrompt) {
  auto random = testing::TestRandom(41);
  Fixture fixture;
  Core& core = fixture.Start();
  auto beside = core.Submit({.prompt = {1, 2}, .max_tokens = 3000});
  for (int i = 0; i < 12; ++i) {
    Request request{.prompt = RandomPrompt(random, 200), .max_tokens = 5};
    request.sampling.temperature = 0;
    request.prompt_logprobs = i % 4;
    request.n = 1 + i % 2;
    request.generate = i % 3 != 0;
    const auto answers = ReadAll(*core.Submit(request), request.n);
    const std::vector<int32_t>& prompt = request.prompt;
    const std::vector<float> logits = WholePass(prompt);
    const auto given = PromptLogprobsOf(answers[0]);
    ASSERT_EQ(given.size(), prompt.size() - 1);
    for (size_t j = 0; j + 1 < prompt.size(); ++j) {
      const std::span row(&logits[j * ToyDecoder::kVocab], ToyDecoder::kVocab);
      double sum = 0;
      for (const float logit : row) sum += std::exp(double{logit});
      EXPECT_EQ(given[j].token.token, prompt[j + 1]);
      const float logit = row[static_cast<size_t>(prompt[j + 1])];
      EXPECT_NEAR(given[j].token.logprob, logit - std::log(sum), 1e-3);
      ASSERT_EQ(given[j].top.size(), static_cast<size_t>(request.prompt_logprobs));
      if (!given[j].top.empty()) {
        EXPECT_NEAR(given[j].top[0].logprob,
                    row[static_cast<size_t>(PlainArgMax(row))] - std::log(sum), 1e-3);
      }
      // Chunks of another size round differently, which may swap tokens that are nearly equal.
      const auto better = [&](float than) {
        return 1 + std::count_if(row.begin(), row.end(), [&](float x) { return x > than; });
      };
      EXPECT_GE(given[j].rank, better(logit + 1e-3f));
      EXPECT_LE(given[j].rank, better(logit - 1e-3f));
    }
    for (int sample = 0; sample < request.n; ++sample) {
      const Answer& answer = answers[static_cast<size_t>(sample)];
      EXPECT_EQ(answer.finish, FinishReason::kLength);
      EXPECT_EQ(answer.tokens,
                request.generate ? Alone(request, sample, 5) : std::vector<int32_t>());
    }
  }
}

// The rows that need logits are cut to what the buffer of logits holds, as those of scores.
TEST(RequestFields, PromptLogprobsComeInPiecesThatFitTheBuffer) {
  Fixture fixture;
  std::atomic<int64_t> most = 0;
  fixture.rig.decoder.on_step = [&](const kv::Step& step) { most = std::max(+most, step.rows); };
  Core& core = fixture.Start();
  Request request{.prompt = std::vector<int32_t>(100, 5), .generate = false};
  request.prompt_logprobs = 0;
  const auto first = core.Submit(request), second = core.Submit(request);
  EXPECT_EQ(PromptLogprobsOf(ReadAll(*first)[0]).size(), 99u);
  EXPECT_EQ(PromptLogprobsOf(ReadAll(*second)[0]).size(), 99u);
  EXPECT_LE(most, fixture.options.score_rows);
}

TEST(RequestFields, KeptPrefixesAreComputedAgainForTheirLogprobs) {
  Fixture fixture;
  fixture.options.prefixes = PrefixOptions{};
  Core& core = fixture.Start();
  auto random = testing::TestRandom(42);
  Request request{.prompt = std::vector<int32_t>(100, 5), .generate = false};
  for (int32_t& token : request.prompt) token = static_cast<int32_t>(random() % 97);
  ReadAll(*core.Submit(request));
  request.prompt_logprobs = 1;
  const auto handle = core.Submit(request);
  EXPECT_EQ(PromptLogprobsOf(ReadAll(*handle)[0]).size(), 99u);
  EXPECT_EQ(handle->Stats().cached_tokens, 0);
  // Without them the kept rows are used, those of the request before as well.
  request.prompt_logprobs = -1;
  const auto again = core.Submit(request);
  ReadAll(*again);
  EXPECT_EQ(again->Stats().cached_tokens, 96);
}

TEST(RequestFields, APromptAloneMayFillTheContext) {
  Fixture fixture;
  fixture.options.context = 64;
  Core& core = fixture.Start();
  Request request{.prompt = std::vector<int32_t>(64, 5)};
  EXPECT_THROW(core.Submit(request), CapacityError);
  request.generate = false;
  EXPECT_EQ(ReadAll(*core.Submit(request))[0].finish, FinishReason::kLength);
  request.prompt.push_back(5);
  EXPECT_THROW(core.Submit(request), CapacityError);
}

TEST(RequestFields, NoAnswerEndsBeforeMinTokens) {
  auto random = testing::TestRandom(43);
  Fixture fixture({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 8}, 4096,
                  {1, 2});
  Core& core = fixture.Start();
  for (int i = 0; i < 20; ++i) {
    Request request{.prompt = RandomPrompt(random, 30), .max_tokens = 60};
    request.stop_token_ids = {3};
    request.stop = {"a", "b", "c", "d", "e", "f", "g"};  // any text at all
    request.min_tokens = static_cast<int64_t>(random() % 40);
    request.sampling.temperature = i % 2;
    for (const int32_t token : {1, 2, 3}) request.sampling.logit_bias.emplace_back(token, 20.0f);
    if (i % 4 == 0) request.stop.clear();
    const Answer answer = ReadAll(*core.Submit(request))[0];
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_GE(static_cast<int64_t>(answer.tokens.size()), request.min_tokens);
    EXPECT_LE(static_cast<int64_t>(answer.tokens.size()), request.min_tokens + 3);
    for (size_t j = 0; j < static_cast<size_t>(request.min_tokens); ++j) {
      EXPECT_THAT(answer.tokens[j], ::testing::Not(::testing::AnyOf(1, 2, 3))) << j;
    }
  }
  Request bad{.prompt = {5}, .max_tokens = 4, .min_tokens = 5};
  EXPECT_THROW(core.Submit(bad), InvalidArgument);
  bad.min_tokens = -1;
  EXPECT_THROW(core.Submit(bad), InvalidArgument);
}

TEST(RequestFields, BadWordsDoNotComeUp) {
  auto random = testing::TestRandom(44);
  Fixture fixture;
  Core& core = fixture.Start();
  const auto contains = [](const std::vector<int32_t>& tokens, const std::vector<int32_t>& word) {
    return std::search(tokens.begin(), tokens.end(), word.begin(), word.end()) != tokens.end();
  };
  for (int i = 0; i < 10; ++i) {
    Request request{.prompt = RandomPrompt(random, 30), .max_tokens = 40};
    request.sampling.temperature = i % 2 == 0 ? 0 : 2;
    request.sampling.seed = random();
    request.sampling.top_k = i % 3 == 0 ? 3 : 0;
    const std::vector<int32_t> free = ReadAll(*core.Submit(request))[0].tokens;
    // What it says, forbidden: a token, a pair, and three of which the last is the first.
    request.bad_words = {{free[3]}, {free[10], free[11]}, {free[20], free[21], free[22]}};
    const std::vector<int32_t> tokens = ReadAll(*core.Submit(request))[0].tokens;
    ASSERT_EQ(tokens.size(), 40u);
    for (const auto& word : request.bad_words) EXPECT_FALSE(contains(tokens, word)) << i;
    if (std::find(free.begin(), free.begin() + 3, free[3]) == free.begin() + 3 && i % 2 == 0) {
      EXPECT_TRUE(std::equal(free.begin(), free.begin() + 3, tokens.begin()));
    }
  }
  Request bad{.prompt = {5}};
  bad.bad_words = {{}};
  EXPECT_THROW(core.Submit(bad), InvalidArgument);
  bad.bad_words = {{5, 97}};
  EXPECT_THROW(core.Submit(bad), InvalidArgument);
}

TEST(RequestFields, StopsMayBePartOfTheText) {
  Fixture fixture;
  Core& core = fixture.Start();
  Request request{.prompt = {5, 6}, .max_tokens = 60};
  request.sampling.temperature = 0;
  const Answer all = ReadAll(*core.Submit(request))[0];
  request.stop = {all.text.substr(6, 3)};
  const Answer without = ReadAll(*core.Submit(request))[0];
  request.include_stop = true;
  const Answer with = ReadAll(*core.Submit(request))[0];
  EXPECT_EQ(with.text, without.text + request.stop[0]);
  EXPECT_EQ(with.tokens, without.tokens);
  request.stop.clear();
  request.stop_token_ids = {all.tokens[4]};
  const Answer by_token = ReadAll(*core.Submit(request))[0];
  EXPECT_EQ(by_token.finish, FinishReason::kStop);
  std::string text;
  for (const int32_t token : by_token.tokens) text += TextOf(token);
  EXPECT_EQ(by_token.text, text);
}

}  // namespace
}  // namespace litecache::engine
