// Random runs of several sequences through a cache, compared with an oracle in double precision and
// plain loops: prompts in chunks, decoding, further prompts, forks, releases, and steps that fail
// and are repeated. Tests of policies that select rows by the queries derive from it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/machine.h"
#include "kv/cache_plan.h"
#include "kv/charges.h"
#include "kv/device_test.h"
#include "kv/random_life.h"
#include "lab/forced/forced_selection.h"
#include "lab/namespaces.h"

namespace litecache::lab {

class Life {
 public:
  // Enough memory for any test.
  static constexpr TierBytes kPlenty{.device = uint64_t{4} << 30, .host = uint64_t{4} << 30};

  struct Settings {
    TierBytes budget = kPlenty;
    std::string device = "cpu";          // the device that the plan was made for
    std::shared_ptr<const Trace> trace;  // replayed by the cache, or null
  };

  Life(std::unique_ptr<CachePlan> plan, uint64_t seed, const Settings& settings);
  virtual ~Life() = default;

  // A step that does not fit a tier must leave the cache unchanged, and reserved memory must be
  // sufficient. make: makes a life with this budget and the plan's policy. other_prompts: tokens of
  // a second sequence, in the device's memory on a CPU.
  using Make = std::function<std::unique_ptr<Life>(const Settings& settings)>;
  static void ExpectRefusalsLeaveNothing(const CachePlan& plan, const std::string& device,
                                         const std::vector<int64_t>& other_prompts,
                                         const Make& make);

  SequenceId Create();
  SequenceId Fork(SequenceId parent);
  void Release(SequenceId id);
  // Runs a step and compares it. fail_after >= 0: first makes an attempt that fails after that many
  // layers.
  void Step(const std::vector<Part>& parts, int64_t fail_after = -1);
  void RunRandom(int steps, int64_t first_prompt, int64_t longest_prompt, bool fails = true);

  Cache& cache() { return *cache_; }
  const CachePlan& plan() const { return *plan_; }

 protected:
  // Rows as stored, [kv_heads * head_dim] per token.
  struct Rows {
    std::vector<std::vector<double>> k, v;
  };
  struct Sequence {
    int64_t length = 0;
    std::vector<Rows> layers;
  };

  // Checks the selection of one sequence's decode step in one layer, directly after Attend(), and
  // returns the output that the cache should have produced, [q_heads * head_dim]. rows: the new
  // token is the last one. `index`: the sequence's index among the step's decode sequences.
  virtual std::vector<double> Decode(const StepSequence& sequence, int64_t index, int64_t layer,
                                     const float* q, const float* predicted, const Rows& rows) = 0;
  // Called for a prompt's chunk in one layer, q [rows][q_heads * head_dim]; for its end; and for a
  // fork.
  virtual void Prompt(const StepSequence& sequence, int64_t layer, const float* q,
                      const Rows& rows) {}
  virtual void EndPrompt(const StepSequence& sequence) {}
  virtual void Forked(SequenceId parent, SequenceId child) {}

  // Writes softmax(scale q.K) V over these tokens, for a KV head's queries, to its part of `out`.
  void AttendTo(const std::vector<int64_t>& tokens, int64_t head, const float* q, const Rows& rows,
                std::vector<double>* out) const;
  int64_t group() const { return layout_.q_heads / layout_.kv_heads; }
  // The `count` rows of [begin, end) that the trace lets the head select in a step's row.
  std::vector<int32_t> Forced(const ForcedSelection& selection, const StepSequence& sequence,
                              int64_t layer, int64_t head, int64_t begin, int64_t end,
                              size_t count) const {
    std::vector<int32_t> rows(count);
    selection.Rows(layer, head, sequence.past, sequence.first_row, begin, end,
                   static_cast<int64_t>(count), rows.data());
    return rows;
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  std::unique_ptr<CachePlan> plan_;
  Layout layout_;
  float scale_;
  Machine machine_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Cache> cache_;

 private:
  struct Inputs {
    std::vector<float> q, predicted, k, v;
  };
  std::vector<Inputs> Draw(const kv::Step& step);
  void RunLayers(const kv::Step& step, const std::vector<Inputs>& inputs, int64_t layers,
                 bool compare);
  void Compare(const kv::Step& step, int64_t layer, const Inputs& inputs,
               const std::vector<float>& out);

  std::map<SequenceId, Sequence> sequences_;
  Charges charges_;
};

}  // namespace litecache::lab
