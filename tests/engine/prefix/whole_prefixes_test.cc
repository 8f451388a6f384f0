// The core with kept prefixes where the cache cannot cut them: prompts are kept while they are
// processed.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "engine/prefix/prefix_rig.h"

namespace litecache::engine {
namespace {

constexpr int64_t kWindow = 40;

std::vector<int32_t> Joined(std::vector<int32_t> beginning, const std::vector<int32_t>& rest) {
  beginning.insert(beginning.end(), rest.begin(), rest.end());
  return beginning;
}

// Where a prompt is kept: 16 tokens before its end at least.
int64_t Place(size_t prompt) { return (static_cast<int64_t>(prompt) - 16) / 16 * 16; }

class WholePrefixes : public ::testing::TestWithParam<KvOptions> {
 protected:
  static PrefixRig Rig(std::optional<PrefixOptions> prefixes = PrefixOptions{},
                       int64_t tokens = 1 << 16, uint64_t sequences = 16) {
    return PrefixRig(GetParam(), std::move(prefixes), tokens, 48, sequences,
                     GetParam().policy == "streaming" ? 0 : kWindow);
  }
};

TEST_P(WholePrefixes, ATurnOfAConversationStartsFromTheLastTurnsPrompt) {
  auto random = TestRandom(121);
  PrefixRig shared = Rig(), fresh = Rig(std::nullopt);
  std::vector<int32_t> prompt = Tokens(random, 333);
  size_t last = 0;
  for (int turn = 1; turn < 6; ++turn) {
    const Request request = Greedy(prompt, 20);
    const Result answer = Answered(shared, request);
    EXPECT_EQ(answer.tokens, Answered(fresh, request).tokens);
    EXPECT_EQ(answer.stats.cached_tokens, turn == 1 ? 0 : Place(last));
    EXPECT_EQ(shared.core().Stats().prefix.sequences, turn) << "prompts are kept, answers are not";
    shared.ExpectIdle();
    // The prompt's last tokens are other ones when the turn has become history.
    last = prompt.size();
    prompt.resize(last - 7);
    prompt = Joined(Joined(prompt, answer.tokens), Tokens(random, 70));
  }
  EXPECT_EQ(shared.rows + static_cast<int64_t>(shared.core().Stats().prefix.tokens), fresh.rows);
  // The same prompt again, and one that ends within it.
  const Result again = Answered(shared, Greedy(prompt, 5));
  EXPECT_EQ(again.stats.cached_tokens, Place(last));
  EXPECT_EQ(Answered(shared, Greedy(prompt, 5)).stats.cached_tokens, Place(prompt.size()));
  EXPECT_EQ(Answered(shared, Greedy(prompt, 5)).tokens, again.tokens);
  prompt.resize(350);
  EXPECT_EQ(Answered(shared, Greedy(prompt, 5)).stats.cached_tokens, Place(333));
}

TEST_P(WholePrefixes, ABeginningIsKeptFromTheSecondRequestOn) {
  auto random = TestRandom(122);
  PrefixRig shared = Rig(), fresh = Rig(std::nullopt);
  const auto document = Tokens(random, 600);
  for (int i = 0; i < 5; ++i) {
    const Request request = Greedy(Joined(document, Tokens(random, 100)), 5);
    const Result answer = Answered(shared, request);
    EXPECT_EQ(answer.stats.cached_tokens, i < 2 ? 0 : 592) << i;
    EXPECT_EQ(answer.tokens, Answered(fresh, request).tokens);
    EXPECT_EQ(shared.core().Stats().prefix.sequences, i + 1 + (i > 0)) << "one for the document";
  }
  shared.ExpectIdle();
  // A short beginning is not worth the memory.
  const auto greeting = Tokens(random, 200);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(
        Answered(shared, Greedy(Joined(greeting, Tokens(random, 100)), 5)).stats.cached_tokens, 0);
  }
}

TEST_P(WholePrefixes, ConcurrentRequestsComputeTheirBeginningOnce) {
  auto random = TestRandom(123);
  PrefixRig rig = Rig(), fresh = Rig(std::nullopt);
  const auto document = Tokens(random, 1000);
  std::vector<Request> requests;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  std::promise<void> submitted;  // the first step waits for it
  rig.decoder.on_step = [all = submitted.get_future().share()](const kv::Step&) { all.wait(); };
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Greedy(Joined(document, Tokens(random, 100)), 5));
    if (i == 3) requests.back().n = 3;
    handles.push_back(rig.core().Submit(requests.back()));
  }
  submitted.set_value();
  for (size_t i = 0; i < handles.size(); ++i) {
    const auto expected = Answered(fresh, requests[i]).tokens;
    for (const Answer& answer : ReadAll(*handles[i], requests[i].n)) {
      EXPECT_EQ(answer.tokens, expected) << i;
    }
    EXPECT_EQ(handles[i]->Stats().cached_tokens, i == 0 ? 0 : 992);
  }
  EXPECT_EQ(rig.core().Stats().prefix.hits, 7);
  rig.ExpectIdle();
}

// The first request ends before, at, or after the place that the others wait for.
TEST_P(WholePrefixes, WaitingRequestsGoOnWhenTheFirstEnds) {
  auto random = TestRandom(124);
  PrefixRig fresh = Rig(std::nullopt);
  for (int round = 0; round < 24; ++round) {
    PrefixRig rig = Rig();
    rig.decoder.delay = std::chrono::microseconds(200);
    auto document = Tokens(random, 500);
    for (int32_t& token : document) token %= 90;
    Request failing = Greedy(document, 5);
    // A token within the beginning fails all; behind it, the first request alone.
    const bool error = round % 3 == 0;
    if (error) {
      rig.decoder.poison = 95;
      failing.prompt = Joined(document, std::vector<int32_t>(random() % 100 + 1, 95));
    }
    const auto tail = std::vector<int32_t>(40, static_cast<int32_t>(round));
    const Request request =
        Greedy(Joined(document, tail), 1);  // no token that it chooses is poison
    const auto first = rig.core().Submit(failing);
    const auto second = rig.core().Submit(request);
    const auto third = rig.core().Submit(request);
    if (!error) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
      first->Cancel();
    }
    if (round % 2 == 0) second->Cancel();
    EXPECT_EQ(ReadAll(*third)[0].tokens, Answered(fresh, request).tokens);
    while (first->Next()) {
    }
    while (second->Next()) {
    }
    rig.ExpectIdle();
  }
}

TEST_P(WholePrefixes, AFullMemoryIsNoReasonToRefuse) {
  auto random = TestRandom(125);
  PrefixRig rig = Rig(PrefixOptions{}, 1000, 1), fresh = Rig(std::nullopt);
  for (int i = 0; i < 12; ++i) {
    // As large as the budget allows: all kept prefixes must be evicted, the request's own as well.
    const Request request = Greedy(Tokens(random, 985), 15);
    EXPECT_EQ(Answered(rig, request).tokens, Answered(fresh, request).tokens);
  }
  EXPECT_GE(rig.core().Stats().prefix.evictions, 11);
  rig.ExpectIdle();
}

TEST_P(WholePrefixes, ManyAtOnceFillTheMemoryAndLoseNothing) {
  auto random = TestRandom(126);
  // Memory for three of the longest requests: kept prefixes are evicted repeatedly.
  PrefixRig shared = Rig(PrefixOptions{}, 740, 3), fresh = Rig(std::nullopt);
  std::vector<std::vector<int32_t>> roots;
  for (int i = 0; i < 3; ++i) roots.push_back(Tokens(random, 500));
  for (int round = 0; round < 3; ++round) {
    std::vector<Job> jobs;
    for (int i = 0; i < 20; ++i) {
      std::vector<int32_t> prompt = roots[random() % roots.size()];
      if (random() % 3 == 0) prompt.resize(1 + random() % prompt.size());
      Request request = Greedy(Joined(prompt, Tokens(random, static_cast<int64_t>(random() % 200))),
                               1 + static_cast<int64_t>(random() % 40));
      request.n = random() % 5 == 0 ? 3 : 1;
      if (random() % 8 == 0) request.prompt_logprobs = 0;
      const bool cancel = random() % 4 == 0;
      jobs.push_back({request, shared.core().Submit(request), cancel});
    }
    shared.core().Score({roots[0], {0}}, {});
    FinishJobs(&jobs, fresh);
    shared.ExpectIdle();
  }
  EXPECT_GT(shared.core().Stats().prefix.evictions, 0);
  EXPECT_GT(shared.core().Stats().prefix.tokens, 0);
}

TEST_P(WholePrefixes, WithWholeChunksPlacesAreMultiplesOfThem) {
  auto random = TestRandom(127);
  PrefixOptions options;
  options.chunk = 48;
  PrefixRig rig = Rig(options), fresh = Rig(std::nullopt);
  const auto document = Tokens(random, 400);
  for (int i = 0; i < 4; ++i) {
    const Request request = Greedy(Joined(document, Tokens(random, 100)), 5);
    const Result answer = Answered(rig, request);
    EXPECT_EQ(answer.stats.cached_tokens, i < 2 ? 0 : 384);
    EXPECT_EQ(answer.tokens, Answered(fresh, request).tokens);
  }
  rig.ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(Policies, WholePrefixes,
                         ::testing::Values(Policy("full"), Policy("litecache", "quest"),
                                           Policy("streaming")),
                         [](const auto& info) { return info.param.policy; });

}  // namespace
}  // namespace litecache::engine
