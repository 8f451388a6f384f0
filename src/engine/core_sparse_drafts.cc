// Drafts by the model itself: decode steps of a policy that selects rows choose tokens as if they
// were the answer's, with the same constraints and the same random numbers, and all of it is taken
// back but the tokens. The step that follows verifies them with attention over all rows.
#include <algorithm>
#include <exception>

#include "base/logging.h"
#include "engine/core.h"
#include "engine/message_of.h"

namespace litecache::engine {
bool Core::AppendDrafted(const Sampled& row) {
  Group* group = row.group;
  Sample& sample = group->samples[row.sample];
  if (!row.error.empty()) return false;
  sample.drafts->next.push_back(row.token);
  sample.last_token = row.token;
  ++sample.generated;
  if (!group->request.bad_words.empty()) sample.tokens.push_back(row.token);
  if (row.complete || std::ranges::binary_search(group->stop_ids, row.token)) return false;
  if (sample.constraint != nullptr) sample.prepared = sample.constraint->Prepare(kMaskPiece);
  return sample.prepared;
}

void Core::DraftSparse(int64_t length) {
  std::vector<DraftingSample> going;
  for (SparseDraft& one : sparse_) {
    const Sample& sample = one.group->samples[one.sample];
    if (sample.constraint != nullptr) one.constraint = sample.constraint->Clone();
    going.push_back({one.group, one.sample});
  }
  try {
    for (int64_t i = 0; i < length && !going.empty(); ++i) {
      const Clock::time_point start = Clock::now();
      Scheduler::PlanDrafts(going, &sparse_plan_);
      ForwardWithRoom(sparse_plan_);
      counters_.drafts.sparse_steps += std::ssize(going);
      sampled_.clear();
      for (const StepPlan::Decode& row : sparse_plan_.decodes) {
        sampled_.push_back({.group = row.group,
                            .sample = row.sample,
                            .logit_row = row.logit_row,
                            .drafted = true});
      }
      SampleRows();
      going.clear();
      for (const Sampled& row : sampled_) {
        if (AppendDrafted(row)) going.push_back({row.group, row.sample});
      }
      std::erase_if(going, [&](const DraftingSample& one) {
        const auto same = [&](const SparseDraft& draft) {
          return draft.group == one.group && draft.sample == one.sample;
        };
        return std::ranges::find_if(sparse_, same)->most <= i + 1;
      });
      // The first step may bring rows that the others only keep.
      if (i == 0) continue;
      sparse_costs_.Measure(sparse_plan_.step.rows, SecondsBetween(start, Clock::now()));
    }
  } catch (...) {  // what has been drafted until then is verified; a lost device fails there, too
    LogDebug("a draft ends: {}", MessageOf(std::current_exception()));
  }
  for (SparseDraft& one : sparse_) {
    Sample& sample = one.group->samples[one.sample];
    const std::vector<int32_t>& drafted = sample.drafts->next;
    for (auto token = drafted.rbegin(); token != drafted.rend(); ++token) {
      sample.sampler.TakeBack(*token);
    }
    sample.generated -= std::ssize(drafted);
    sample.last_token = one.last_token;
    if (!one.group->request.bad_words.empty()) {
      sample.tokens.resize(sample.tokens.size() - drafted.size());
    }
    if (one.constraint != nullptr) sample.constraint = std::move(one.constraint);
    sample.prepared = true;
    one.group->channel->UpdateStats(
        [&](RequestStats& stats) { stats.drafts.sparse_steps += std::ssize(drafted); });
    TruncateRejected(*one.group, sample);
  }
}

}  // namespace litecache::engine
