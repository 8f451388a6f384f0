// The order in which clients' requests are started and processed.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "test_seed.h"

namespace litecache::engine {
namespace {

using testing::TestRandom;

// Requests without KV, so that only the batch's size limits them.
class Queue {
 public:
  explicit Queue(int64_t max_batch, int64_t prefill_chunk = 8)
      : scheduler_({.max_batch = max_batch, .prefill_chunk = prefill_chunk, .score_rows = 1}) {}

  Group* Add(uint64_t client, size_t prompt = 1) {
    auto group = std::make_unique<Group>();
    group->request.client = client;
    group->request.prompt.assign(prompt, 5);
    Group* added = group.get();
    scheduler_.Enqueue(std::move(group));
    return added;
  }
  void End(Group* group) {
    group->ended = true;
    scheduler_.RemoveEnded();
  }
  // Ends the first running request, and returns the client of the request that starts instead.
  uint64_t Next() {
    if (!scheduler_.running().empty()) End(scheduler_.running().front().get());
    const auto admitted = scheduler_.Admit();
    EXPECT_EQ(admitted.size(), 1u);
    return admitted.empty() ? 0 : admitted.front()->client();
  }
  // Runs the next step's prompt rows; returns the clients they belong to, in order.
  std::vector<uint64_t> Step() {
    StepPlan plan;
    scheduler_.Plan(&plan);
    std::vector<uint64_t> clients;
    for (const auto& part : plan.prefills) {
      part.group->prefilled += part.count;
      clients.push_back(part.group->client());
    }
    return clients;
  }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Scheduler scheduler_;
};

TEST(Scheduler, OneClientsRequestsStartInTheirOrder) {
  Queue queue(3);
  std::vector<Group*> added;
  for (int i = 0; i < 7; ++i) added.push_back(queue.Add(9));
  std::vector<Group*> started;
  while (started.size() < added.size()) {
    for (Group* group : queue.scheduler().Admit()) started.push_back(group);
    queue.End(queue.scheduler().running().front().get());
  }
  EXPECT_EQ(started, added);
}

TEST(Scheduler, AFloodDoesNotHoldUpOthers) {
  Queue queue(1);
  for (int i = 0; i < 50; ++i) queue.Add(1);
  EXPECT_EQ(queue.Next(), 1u);
  for (int i = 0; i < 3; ++i) queue.Add(2);
  queue.Add(3);
  const std::vector<uint64_t> expected = {2, 3, 1, 2, 1, 2, 1, 1};
  for (const uint64_t client : expected) EXPECT_EQ(queue.Next(), client);
}

TEST(Scheduler, ARunningClientHasHadItsTurn) {
  Queue queue(1);
  queue.Add(1);
  EXPECT_EQ(queue.Next(), 1u);
  EXPECT_TRUE(queue.scheduler().Admit().empty());  // nothing waits
  queue.Add(1);
  queue.Add(2);
  EXPECT_EQ(queue.Next(), 2u);
  EXPECT_EQ(queue.Next(), 1u);
}

TEST(Scheduler, AClientThatAlwaysWaitsStillTakesTurns) {
  Queue queue(1);
  queue.Add(1);
  queue.Add(1);
  queue.Add(2);
  std::map<uint64_t, int> started;
  for (int i = 0; i < 40; ++i) {
    const uint64_t client = queue.Next();
    ++started[client];
    queue.Add(client);
  }
  EXPECT_EQ(started[1], 20);
  EXPECT_EQ(started[2], 20);
}

// The rows that a chunk leaves go to other prompts.
TEST(Scheduler, AChunkEndsWhereItsPromptIsKept) {
  Queue queue(2, /*prefill_chunk=*/8);
  Group* first = queue.Add(1, 30);
  Group* second = queue.Add(1, 30);
  queue.scheduler().Admit();
  first->keep_at = {11, 13};
  const std::vector<std::pair<int64_t, int64_t>> expected = {{8, 0}, {11, 5}, {13, 11}, {21, 11}};
  for (const auto& [of_first, of_second] : expected) {
    queue.Step();
    EXPECT_EQ(first->prefilled, of_first);
    EXPECT_EQ(second->prefilled, of_second);
    if (!first->keep_at.empty() && first->keep_at.front() == of_first) {
      first->keep_at.erase(first->keep_at.begin());
    }
  }
}

TEST(Scheduler, CancelledRequestsCostNoTurn) {
  Queue queue(1);
  queue.Add(2);
  EXPECT_EQ(queue.Next(), 2u);
  std::vector<Group*> flood;
  for (int i = 0; i < 50; ++i) flood.push_back(queue.Add(1));
  for (Group* group : flood) queue.End(group);
  for (int i = 0; i < 5; ++i) queue.Add(2);
  queue.Add(1);
  const uint64_t first = queue.Next(), second = queue.Next();
  EXPECT_TRUE(first == 1 || second == 1);
}

// In every random sequence of arrivals and ends, a client's requests keep their order, and while
// one waits, every other client starts at most two more requests than were ahead of it in its own
// client's queue.
TEST(Scheduler, NoRequestIsOvertakenTooOften) {
  auto random = TestRandom(1);
  for (int run = 0; run < 20; ++run) {
    const int64_t slots = 1 + static_cast<int64_t>(random() % 3);
    const uint64_t clients = 2 + random() % 4;
    Queue queue(slots);
    struct Waiting {
      int ahead = 0;
      std::map<uint64_t, int> overtook;
    };
    std::map<uint64_t, std::vector<std::pair<Group*, Waiting>>> waiting;
    for (int i = 0; i < 400; ++i) {
      // Some clients send far more than others.
      const uint64_t client = random() % (1 + random() % clients);
      if (random() % 2 == 0) {
        Waiting one{static_cast<int>(waiting[client].size()), {}};
        waiting[client].emplace_back(queue.Add(client), one);
      }
      const auto& running = queue.scheduler().running();
      if (!running.empty() && random() % 3 == 0) queue.End(running.back().get());
      for (Group* group : queue.scheduler().Admit()) {
        const uint64_t started = group->client();
        ASSERT_EQ(waiting[started].front().first, group);
        for (const auto& [other, count] : waiting[started].front().second.overtook) {
          ASSERT_LE(count, waiting[started].front().second.ahead + 2)
              << "client " << started << " waited for " << other;
        }
        waiting[started].erase(waiting[started].begin());
        for (auto& [other, requests] : waiting) {
          if (other == started) continue;
          for (auto& [key, one] : requests) ++one.overtook[started];
        }
      }
    }
  }
}

TEST(Scheduler, PromptsOfSeveralClientsAreProcessedInTurns) {
  Queue queue(10, 8);
  queue.Add(1, 40);
  queue.Add(1, 8);
  queue.Add(2, 12);
  queue.Add(3, 4);
  queue.scheduler().Admit();
  using Clients = std::vector<uint64_t>;
  EXPECT_EQ(queue.Step(), Clients({1}));
  EXPECT_EQ(queue.Step(), Clients({2}));
  // A prompt's last chunk leaves space, which the next client in turn uses.
  EXPECT_EQ(queue.Step(), Clients({3, 1}));
  EXPECT_EQ(queue.Step(), Clients({1}));
  EXPECT_EQ(queue.Step(), Clients({2, 1}));
}

// Where a prompt is cut does not depend on the other prompts.
TEST(Scheduler, WholeChunksAreCutAtTheirMultiples) {
  Scheduler scheduler({.max_batch = 10, .prefill_chunk = 8, .score_rows = 1, .whole_chunks = true});
  for (const size_t prompt : {3, 21, 12}) {
    auto group = std::make_unique<Group>();
    group->request.prompt.assign(prompt, 5);
    scheduler.Enqueue(std::move(group));
  }
  scheduler.Admit();
  std::map<size_t, std::vector<int64_t>> begins;
  for (int step = 0; step < 10; ++step) {
    StepPlan plan;
    scheduler.Plan(&plan);
    int64_t rows = 0;
    for (const auto& part : plan.prefills) {
      begins[part.group->request.prompt.size()].push_back(part.begin);
      part.group->prefilled += part.count;
      rows += part.count;
    }
    EXPECT_LT(rows, 2 * 8);
  }
  EXPECT_EQ(begins[3], (std::vector<int64_t>{0}));
  EXPECT_EQ(begins[21], (std::vector<int64_t>{0, 8, 16}));
  EXPECT_EQ(begins[12], (std::vector<int64_t>{0, 8}));
}

TEST(Scheduler, PromptsOfTwoClientsAreProcessedInTurns) {
  Queue queue(10, 8);
  queue.Add(1, 24);
  queue.Add(2, 20);
  queue.scheduler().Admit();
  using Clients = std::vector<uint64_t>;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(queue.Step(), Clients({1}));
    EXPECT_EQ(queue.Step(), Clients({2}));
  }
  EXPECT_EQ(queue.Step(), Clients());
}

}  // namespace
}  // namespace litecache::engine
