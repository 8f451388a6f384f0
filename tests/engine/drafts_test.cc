// Drafts change how many steps an answer takes, and nothing else.
#include <numeric>

#include "engine/core_fixture.h"
#include "engine/draft/draft_length.h"
#include "engine/draft/lookup.h"

namespace litecache::engine {
namespace {

constexpr CoreOptions kPlain{
    .context = 4000, .max_batch = 16, .prefill_chunk = 48, .score_rows = 100};

struct Drafter {
  std::string name;
  bool lookup = false, sparse = false;
  // A draft model: the window of its first layer, which makes its choices differ now and then, its
  // vocabulary, and the most tokens that its cache and its context have room for; 0: none.
  int64_t window = 0, vocab = 0, room = 0, context = 4000;
};

CoreOptions Drafting(int64_t tokens, const Drafter& drafter = {"lookup", true}) {
  CoreOptions options = kPlain;
  options.draft_tokens = tokens;
  options.draft_lookup = drafter.lookup;
  options.draft_sparse = drafter.sparse;
  options.draft_always = true;
  return options;
}

// A core that drafts; with decode steps of policy litecache, if it drafts by these.
struct DraftingFixture : Fixture {
  DraftingFixture(int64_t tokens, const Drafter& drafter) : Fixture(Drafting(tokens, drafter)) {
    if (drafter.sparse) rig.cache = FewRows(rig);
    if (drafter.room == 0) return;
    DraftBy(std::make_unique<ToyDecoder>(drafter.context, drafter.window, drafter.vocab),
            drafter.room);
  }
};

class DraftsTest : public ::testing::TestWithParam<Drafter> {};

INSTANTIATE_TEST_SUITE_P(
    Drafters, DraftsTest,
    ::testing::Values(Drafter{"lookup", true}, Drafter{"sparse", false, true},
                      Drafter{"both", true, true},
                      Drafter{"model", false, false, 16, ToyDecoder::kVocab, 20'000},
                      Drafter{"smaller_vocabulary", false, false, 16, 90, 20'000},
                      Drafter{"larger_vocabulary_and_lookup", true, false, 16, 103, 20'000},
                      // Not all requests have a place in its cache, or end in its context.
                      Drafter{"little_room", false, false, 16, ToyDecoder::kVocab, 2560, 140}),
    [](const auto& info) { return info.param.name; });

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

TEST_P(DraftsTest, ChangeNoAnswer) {
  auto random = TestRandom(1);
  Fixture plain(kPlain);
  DraftingFixture drafting(7, GetParam());
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
  EXPECT_EQ(stats.drafts.draft_steps > 0, GetParam().sparse || GetParam().room > 0);
  EXPECT_GT(stats.drafts.accepted, stats.generated_tokens / 40);
  EXPECT_LT(stats.drafts.accepted, stats.drafts.drafted);
  EXPECT_EQ(stats.generated_tokens - firsts, stats.drafts.passes + stats.drafts.accepted);
}

TEST_P(DraftsTest, CancelsLeaveNothingAndKeptPrefixesHoldNoRejectedToken) {
  auto random = TestRandom(2);
  DraftingFixture drafting(9, GetParam());
  drafting.options.prefixes = PrefixOptions{};
  Fixture plain(kPlain);
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

// A model that drafts for itself is right but for rounding; with kept prefixes, too, which it first
// computes again, 64 tokens with each step.
TEST(Drafts, TheModelItselfIsAlwaysRight) {
  auto random = TestRandom(6);
  DraftingFixture drafting(5, {"itself", false, false, 0, ToyDecoder::kVocab, 20'000});
  drafting.options.prefixes = PrefixOptions{};
  Core& core = drafting.Start();
  Request request;
  request.prompt = RandomPrompt(random, 300);
  request.max_tokens = 61;
  for (int turn = 0; turn < 4; ++turn) {
    request.n = 1 + turn % 2;
    request.sampling.temperature = turn < 2 ? 0 : 1;
    request.sampling.seed = random();
    const auto handle = core.Submit(request);
    const auto answers = ReadAll(*handle, request.n);
    const DraftStats stats = handle->Stats().drafts;
    EXPECT_GE(static_cast<double>(stats.accepted), 0.95 * static_cast<double>(stats.drafted));
    EXPECT_GT(stats.tokens_per_pass(), turn == 0 ? 5.0 : 2.5) << "turn " << turn;
    request.prompt.insert(request.prompt.end(), answers[0].tokens.begin(), answers[0].tokens.end());
  }
  EXPECT_GT(core.Stats().prefix.hits, 0);
}

// Whatever goes wrong in the draft model, answers stay.
TEST(Drafts, AFailingDraftModelChangesNoAnswer) {
  auto random = TestRandom(7);
  Fixture plain(kPlain);
  DraftingFixture drafting(5, {"failing", false, false, 16, ToyDecoder::kVocab, 20'000});
  drafting.draft_decoder->poison = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  drafting.draft_decoder->spoiled = static_cast<int32_t>(random() % ToyDecoder::kVocab);
  drafting.draft_decoder->most_rows = 30;
  Core& without = plain.Start();
  Core& with = drafting.Start();
  for (int i = 0; i < 30; ++i) {
    const Request request = FewTokens(random);
    const auto expected = ReadAll(*without.Submit(request), request.n);
    const auto drafted = ReadAll(*with.Submit(request), request.n);
    for (size_t sample = 0; sample < expected.size(); ++sample) {
      EXPECT_EQ(drafted[sample].tokens, expected[sample].tokens);
      EXPECT_EQ(drafted[sample].error, "");
    }
  }
  EXPECT_GT(with.Stats().drafts.accepted, 0);
}

// Probabilities of all answers of three tokens after `prompt`, by the logits of a plain forward
// pass, if only `tokens` may come.
std::map<std::vector<int32_t>, double> AnswerProbabilities(const std::vector<int32_t>& prompt,
                                                           const std::vector<int32_t>& tokens) {
  std::map<std::vector<int32_t>, double> probabilities = {{{}, 1.0}};
  ToyRig rig;
  for (int length = 0; length < 3; ++length) {
    std::map<std::vector<int32_t>, double> longer;
    for (const auto& [answer, probability] : probabilities) {
      std::vector<int32_t> input = prompt;
      input.insert(input.end(), answer.begin(), answer.end());
      PlainLoop(rig.decoder, *rig.cache, *rig.stream, input, 1, [&](std::span<const float> row) {
        std::vector<double> weights;
        for (const int32_t token : tokens) {
          weights.push_back(std::exp(static_cast<double>(row[static_cast<size_t>(token)])));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t i = 0; i < tokens.size(); ++i) {
          std::vector<int32_t> next = answer;
          next.push_back(tokens[i]);
          longer[next] = probability * weights[i] / sum;
        }
        return 0;
      });
    }
    probabilities = std::move(longer);
  }
  return probabilities;
}

// The number of answers of three tokens in 3,000 samples, against their probabilities.
TEST_P(DraftsTest, SampledAnswersHaveTheModelsDistribution) {
  auto random = TestRandom(5);
  const std::vector<int32_t> tokens = {11, 42, 77, 80};
  DraftingFixture drafting(4, GetParam());
  Core& core = drafting.Start();
  Request request;
  request.prompt = RandomPrompt(random, 1);
  // All tokens often, so that there is something to look up.
  while (request.prompt.size() < 90) request.prompt.push_back(tokens[random() % tokens.size()]);
  request.max_tokens = 3;
  request.n = GetParam().context < 4000 ? 2 : 10;  // with little room, as many as have some
  request.sampling.temperature = 1;
  for (const int32_t token : tokens) request.sampling.logit_bias.emplace_back(token, 100.0f);
  constexpr int kSamples = 3000;
  std::map<std::vector<int32_t>, int> counts;
  for (int sampled = 0; sampled < kSamples; sampled += request.n) {
    request.sampling.seed = random();
    const auto handle = core.Submit(request);
    for (const Answer& answer : ReadAll(*handle, request.n)) ++counts[answer.tokens];
  }
  EXPECT_GT(core.Stats().drafts.accepted, 0);
  // Half of the rows hold nearly all of the attention after one prompt in thirty: then decode steps
  // draft what the model draws, 3,000 times.
  if (GetParam().name != "sparse") {
    EXPECT_LT(core.Stats().drafts.accepted, core.Stats().drafts.drafted);
  }
  double chi_square = 0, rare = 0;
  int classes = 0, rare_count = 0;
  const auto add = [&](double expected, int count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++classes;
  };
  for (const auto& [answer, probability] : AnswerProbabilities(request.prompt, tokens)) {
    const double expected = probability * kSamples;
    if (expected >= 5) {
      add(expected, counts[answer]);
    } else {
      rare += expected;
      rare_count += counts[answer];
    }
  }
  if (rare >= 5) add(rare, rare_count);
  ASSERT_GE(classes, 4);
  // Six standard deviations above the mean of the chi-square distribution.
  const double freedom = classes - 1;
  EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom)) << classes << " classes";
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
  DraftingCosts sparse{StepCosts()};
  const std::vector<double> rates = {0.9, 0.9};
  EXPECT_EQ(StepsLength(costs, sparse, rates, 8, 2, 2), kFewDrafts) << "to measure what they cost";
  sparse.others.Measure(2, 0.1);
  EXPECT_GE(StepsLength(costs, sparse, rates, 8, 2, 2), 3);
  sparse.first.Measure(2, 0.5);
  EXPECT_DOUBLE_EQ(sparse.Of(8, 2), 0.5 + 7 * 0.1);
  EXPECT_GE(StepsLength(costs, sparse, rates, 8, 2, 2), 3) << "many tokens pay for the first step";
  EXPECT_EQ(StepsLength(costs, sparse, std::vector<double>{0.01, 0.01}, 8, 2, 2), 0);
  sparse.first.Measure(2, 100);
  EXPECT_EQ(StepsLength(costs, sparse, rates, 8, 2, 2), 0);
  EXPECT_EQ(StepsLength(StepCosts(), sparse, rates, 8, 2, 2), 0);
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
