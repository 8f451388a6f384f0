// Drafts change how many steps an answer takes, and nothing else.
#include "engine/core_fixture.h"
#include "engine/draft/draft_length.h"
#include "engine/draft/lookup.h"

namespace litecache::engine {
namespace {

CoreOptions Drafting(int64_t tokens) {
  return {.context = 4000,
          .max_batch = 16,
          .prefill_chunk = 48,
          .score_rows = 24,
          .draft_tokens = tokens,
          .draft_always = true};
}

// A request whose answer consists of a few tokens, so that text repeats and about half of the
// drafted tokens are chosen.
Request FewTokens(std::mt19937_64& random) {
  Request request;
  request.prompt = RandomPrompt(random, 80);
  request.max_tokens = 1 + static_cast<int64_t>(random() % 60);
  request.n = random() % 4 == 0 ? 1 + static_cast<int>(random() % 4) : 1;
  request.sampling.seed = random();
  request.sampling.temperature = random() % 2 == 0 ? 0 : 1;
  for (int i = 0; i < 3; ++i) {
    request.sampling.logit_bias.emplace_back(static_cast<int32_t>(random() % ToyDecoder::kVocab),
                                             100.0f);
  }
  if (random() % 3 == 0) request.sampling.frequency_penalty = 0.2;
  if (random() % 3 == 0) request.sampling.top_p = 0.9;
  if (random() % 3 == 0) request.logprobs = static_cast<int>(random() % 3);
  if (random() % 3 == 0) request.stop = {TextOf(static_cast<int32_t>(random() % 97)) + "a"};
  return request;
}

TEST(Drafts, ChangeNoAnswer) {
  auto random = TestRandom(1);
  Fixture plain({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 24});
  Fixture drafting(Drafting(7));
  Core& without = plain.Start();
  Core& with = drafting.Start();
  std::vector<Request> requests;
  std::vector<std::shared_ptr<RequestHandle>> expected, drafted;
  for (int i = 0; i < 60; ++i) {
    requests.push_back(FewTokens(random));
    expected.push_back(without.Submit(requests.back()));
    drafted.push_back(with.Submit(requests.back()));
  }
  int64_t firsts = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto a = ReadAll(*expected[i], requests[i].n);
    const auto b = ReadAll(*drafted[i], requests[i].n);
    for (size_t sample = 0; sample < a.size(); ++sample) {
      EXPECT_EQ(b[sample].tokens, a[sample].tokens);
      EXPECT_EQ(b[sample].text, a[sample].text);
      EXPECT_EQ(b[sample].finish, a[sample].finish);
      ASSERT_EQ(b[sample].chunks.size(), a[sample].chunks.size());
      for (size_t c = 0; c < a[sample].chunks.size(); ++c) {
        const auto& left = a[sample].chunks[c].logprob;
        const auto& right = b[sample].chunks[c].logprob;
        ASSERT_EQ(left.has_value(), right.has_value());
        if (left) {
          EXPECT_NEAR(left->logprob, right->logprob, 1e-3);
        }
      }
    }
    firsts += requests[i].n;
    const RequestStats stats = drafted[i]->Stats();
    EXPECT_EQ(stats.generated_tokens - requests[i].n, stats.drafts.passes + stats.drafts.accepted);
  }
  const EngineStats stats = with.Stats();
  EXPECT_GT(stats.drafts.accepted, stats.generated_tokens / 40);
  EXPECT_LT(stats.drafts.accepted, stats.drafts.drafted);
  EXPECT_EQ(stats.generated_tokens - firsts, stats.drafts.passes + stats.drafts.accepted);
}

TEST(Drafts, CancelsLeaveNothingAndKeptPrefixesHoldNoRejectedToken) {
  auto random = TestRandom(2);
  CoreOptions options = Drafting(9);
  options.prefixes = PrefixOptions{};
  Fixture drafting(options);
  Fixture plain({.context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 24});
  Core& with = drafting.Start();
  Core& without = plain.Start();
  for (int i = 0; i < 40; ++i) {
    Request request = FewTokens(random);
    request.n = 1;
    request.stop.clear();
    auto handle = with.Submit(request);
    if (random() % 3 == 0) {
      const auto first = handle->Next();
      handle->Cancel();
      if (first->finish == FinishReason::kNone) ReadAll(*handle);
      continue;
    }
    const auto first = ReadAll(*handle);
    // The answer is a prefix of the next prompt.
    request.prompt.insert(request.prompt.end(), first[0].tokens.begin(), first[0].tokens.end());
    request.prompt.push_back(static_cast<int32_t>(random() % ToyDecoder::kVocab));
    const auto expected = ReadAll(*without.Submit(request));
    EXPECT_EQ(ReadAll(*with.Submit(request))[0].tokens, expected[0].tokens);
  }
  EXPECT_GT(with.Stats().prefix.hits, 0);
  EXPECT_GT(with.Stats().drafts.accepted, 0);
}

TEST(Drafts, LookupFindsTheLongestMatchAndTheLatestAmongEquals) {
  auto random = TestRandom(3);
  for (int life = 0; life < 50; ++life) {
    std::vector<int32_t> tokens(random() % 40);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    LookupDrafter lookup(tokens);
    for (int step = 0; step < 40; ++step) {
      const auto end = static_cast<int64_t>(tokens.size());
      int64_t best = 0, from = 0;
      for (int64_t at = end - 1; at >= 2; --at) {
        int64_t match = 0;
        while (match < std::min(at, LookupDrafter::kLongest) &&
               tokens[static_cast<size_t>(at - 1 - match)] ==
                   tokens[static_cast<size_t>(end - 1 - match)]) {
          ++match;
        }
        if (match >= LookupDrafter::kShortest && match > best) {
          best = match;
          from = at;
        }
      }
      std::vector<int32_t> draft, expected;
      ASSERT_EQ(lookup.Propose(6, &draft), best);
      if (best > 0) {
        std::vector<int32_t> text = tokens;
        for (int64_t i = 0; i < 6; ++i) text.push_back(text[static_cast<size_t>(from + i)]);
        expected.assign(text.begin() + end, text.end());
      }
      ASSERT_EQ(draft, expected);
      tokens.push_back(static_cast<int32_t>(random() % 4));
      lookup.Add(tokens.back());
    }
  }
}

TEST(Drafts, TheLengthFollowsCostsAndAcceptance) {
  StepCosts costs;
  double tokens = 1;
  EXPECT_EQ(DraftLength(costs, 0.9, 8, 1, &tokens), 0) << "nothing has been measured";
  costs.Measure(1, 1.0);
  costs.Measure(9, 1.2);
  EXPECT_EQ(DraftLength(costs, 0.95, 8, 1, &tokens), 8);
  EXPECT_NEAR(tokens, 1 + 0.95 * (1 - std::pow(0.95, 8)) / 0.05, 1e-9);
  tokens = 1;
  EXPECT_EQ(DraftLength(costs, 0.01, 8, 1, &tokens), 0);
  EXPECT_EQ(tokens, 1);
  StepCosts steep;  // rows cost as much as steps
  steep.Measure(1, 1.0);
  steep.Measure(9, 9.0);
  EXPECT_EQ(DraftLength(steep, 0.99, 8, 1, &tokens), 0);
  Acceptance acceptance;
  const double before = acceptance.Rate(6);
  for (int i = 0; i < 5; ++i) acceptance.Record(6, 4, 0);
  EXPECT_LT(acceptance.Rate(6), before / 2);
  EXPECT_EQ(acceptance.Rate(2), Acceptance().Rate(2)) << "lengths are separate";
  for (int i = 0; i < 3000; ++i) acceptance.Skip(6);
  EXPECT_NEAR(acceptance.Rate(6), before, 1e-3);
}

}  // namespace
}  // namespace litecache::engine
