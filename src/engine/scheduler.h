// Decides which tokens the next step processes.
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
  int64_t max_batch = 0;      // most sequences that run together
  int64_t prefill_chunk = 0;  // prompt tokens per step
  // The same for steps in which samples decode, at most prefill_chunk; 0: prefill_chunk.
  int64_t prefill_chunk_beside_decode = 0;
  // Prompt rows per step that need logits each (score jobs, and requests for the prompt's
  // log-probabilities): less than a chunk if the vocabulary is large. A step has at most
  // max_batch + score_rows rows of logits.
  int64_t score_rows = 0;
  // A prompt is cut at multiples of prefill_chunk (a score job at multiples of score_rows, if that
  // is less), whatever else the step processes: a step takes whole chunks, the last one beyond the
  // limits above. Its plan has to be divided (step_parts.h).
  bool whole_chunks = false;
  // Samples decode as chunks, also without drafts, since decode rows only draft
  // (kv::Cache::SelectsRows).
  bool verified = false;
};

// A sample that drafts.
struct DraftingSample {
  Group* group = nullptr;
  size_t sample = 0;
};

// One forward pass, ready for the model, with the owners of its rows.
struct StepPlan {
  struct Decode {
    Group* group = nullptr;
    size_t sample = 0;
    int64_t logit_row = 0;  // of the sample's last token
    int64_t drafted = 0;    // rows behind it, with logits too
  };
  struct Prefill {
    Group* group = nullptr;
    int64_t begin = 0;  // prompt tokens [begin, begin + count)
    int64_t count = 0;
    int64_t logit_row = 0;   // the first of logit_rows
    int64_t logit_rows = 0;  // 0: none; 1: the last row's; count: all rows' (Group::all_logits)
  };

  kv::Step step;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int64_t> logit_rows;
  std::vector<Decode> decodes;
  std::vector<Prefill> prefills;

  bool empty() const { return tokens.empty(); }
  // Whether one of its requests has ended since it was planned.
  bool HasEnded() const;
  void Clear();
};

// Continuous batching: every step processes one row of every sample that decodes, together with up
// to prefill_chunk prompt tokens. A request is admitted only if its worst case fits beside the
// worst cases of all running ones, so an admitted request never waits for memory.
//
// Clients take turns, both in starting requests and in having prompts processed; one client's
// requests keep their order. Starting: fair queueing in rounds (Demers, Keshav and Shenker, 1989,
// with a request as the unit). A client's next request belongs to the round after that of its last
// one, or to the current round if that is later. Requests start by round, and by arrival within a
// round. So each request of a client waits for at most one request of every other client, and no
// request is overtaken forever, even when memory is short. Not thread-safe; independent of the
// model.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  void Enqueue(std::unique_ptr<Group> group);
  // Moves requests from waiting to running while they fit; returns those moved.
  std::vector<Group*> Admit();
  // Plans the next step of all running requests.
  void Plan(StepPlan* plan);
  // Plans a step of one request alone: its samples' rows, or the next chunk of its prompt.
  void PlanAlone(Group* group, StepPlan* plan) const;
  // Plans a step in which these samples decode, whose tokens are drafts. first: of a draft; those
  // behind it keep the rows that it chooses.
  static void PlanDrafts(std::span<const DraftingSample> samples, bool first, StepPlan* plan);
  // Drops requests that have ended, running or waiting.
  void RemoveEnded();

  const std::list<std::unique_ptr<Group>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Group>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }

 private:
  // Decode rows come first in a step, and samples with drafts are chunks: drafted says which of the
  // two kinds to add.
  void AddDecodes(Group* group, bool drafted, StepPlan* plan) const;
  // Adds a sample's last token and its draft, as a chunk; or the token alone, as a decode row,
  // whose result is used or, with `drafts`, only a draft.
  static void AddSample(Group* group, size_t sample, bool decode, bool drafts, StepPlan* plan);
  // Adds the next token of a score job that has reached its decode steps.
  void AddScoreDecode(Group* group, StepPlan* plan) const;
  // How many prompt tokens a step can still take.
  struct Budget {
    int64_t rows = 0;
    int64_t logit_rows = 0;  // of prompts whose rows all need logits
  };
  void AddPrefill(Group* group, Budget* budget, StepPlan* plan) const;

  // Requests whose prompts are being processed, in the order in which they get the step's rows,
  // beginning with the client after the one that was first in the last step.
  std::vector<Group*> PrefillOrder() const;

  SchedulerLimits limits_;
  std::deque<std::unique_ptr<Group>> waiting_;  // by turn, then by arrival
  uint64_t turn_ = 0;                           // of the last admitted request
  // client -> the turn of its last admitted request, while that is the current turn.
  std::unordered_map<uint64_t, uint64_t> started_turns_;
  uint64_t prefilled_client_ = 0;              // its prompts got the first rows of the last step
  std::list<std::unique_ptr<Group>> running_;  // in the order of admission
};

}  // namespace litecache::engine
