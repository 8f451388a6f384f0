// Which tokens the next step runs.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/group.h"
#include "kv/cache.h"

namespace litecache::engine {

struct SchedulerLimits {
  kv::TierBytes kv_bytes;     // the cache's capacity
  int64_t max_batch = 0;      // sequences that run together
  int64_t prefill_chunk = 0;  // prompt tokens of a step
  // The same where samples decode in it, at most prefill_chunk; 0: prefill_chunk.
  int64_t prefill_chunk_beside_decode = 0;
  // Rows of a score job in a step; each needs logits, so this is less than a chunk where the
  // vocabulary is large. A step has at most max_batch + score_rows rows of logits.
  int64_t score_rows = 0;
};

// One forward pass, ready for the model, and whose rows are which.
struct StepPlan {
  struct Decode {
    Group* group = nullptr;
    size_t sample = 0;
    int64_t logit_row = 0;
  };
  struct Prefill {
    Group* group = nullptr;
    int64_t begin = 0;  // prompt tokens [begin, begin + count)
    int64_t count = 0;
    int64_t logit_row = 0;   // first of
    int64_t logit_rows = 0;  // 0: none; 1: of the last row; count: of all (scores)
  };

  kv::Step step;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int64_t> logit_rows;
  std::vector<Decode> decodes;
  std::vector<Prefill> prefills;

  bool empty() const { return tokens.empty(); }
  void Clear();
};

// Continuous batching: every step takes one row of every sample that decodes, and beside them up to
// prefill_chunk prompt tokens. Requests are admitted only when their worst case fits beside the
// worst case of all that run: an admitted request never waits for memory again.
//
// Clients take turns, in starting requests and in having prompts processed; one client's requests
// go in their order. Starting: fair queueing in rounds (Demers, Keshav and Shenker, 1989, with a
// request as the unit). A client's next request belongs to the round after its last one's, or to
// the current round where that is later, and requests start by round, within one by arrival. So a
// request waits for at most one of every other client's for each of its own, and none is overtaken
// for ever, memory or not. Not thread-safe; knows no model.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  void Enqueue(std::unique_ptr<Group> group);
  // Moves requests from waiting to running while they fit; returns those moved.
  std::vector<Group*> Admit();
  // The next step of all that run.
  void Plan(StepPlan* plan);
  // A step of one request alone: its samples' rows, or the next chunk of its prompt.
  void PlanAlone(Group* group, StepPlan* plan) const;
  // Drops requests that have ended, running or waiting.
  void RemoveEnded();

  const std::list<std::unique_ptr<Group>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Group>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }

 private:
  void AddDecodes(Group* group, StepPlan* plan) const;
  // The next token of a score job that has come to its decode steps.
  void AddScoreDecode(Group* group, StepPlan* plan) const;
  // What a step has left for prompt tokens.
  struct Budget {
    int64_t rows = 0;
    int64_t score_rows = 0;
  };
  void AddPrefill(Group* group, Budget* budget, StepPlan* plan) const;

  // Requests whose prompts are being processed, in the order in which they get the step's rows: the
  // client after the last step's first one begins.
  std::vector<Group*> PrefillOrder() const;

  SchedulerLimits limits_;
  std::deque<std::unique_ptr<Group>> waiting_;  // by turn, within one by arrival
  uint64_t turn_ = 0;                           // of the last request admitted
  // client -> the turn of its last request admitted, while that is the current one.
  std::unordered_map<uint64_t, uint64_t> started_turns_;
  uint64_t prefilled_client_ = 0;              // had the first rows of the last step
  std::list<std::unique_ptr<Group>> running_;  // in the order of admission
};

}  // namespace litecache::engine
