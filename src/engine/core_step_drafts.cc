// Drafts by steps: decode steps of a policy that selects rows, or steps of a draft model, choose
// tokens as if they were the answer's, with the same constraints and the same random numbers, and
// all of it is taken back but the tokens. The step that follows verifies them with attention over
// all rows.
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
  sample.tokens.push_back(row.token);
  if (row.complete || std::ranges::binary_search(group->stop_ids, row.token)) return false;
  if (sample.constraint != nullptr) sample.prepared = sample.constraint->Prepare(kMaskPiece);
  return sample.prepared;
}

bool Core::DraftStep(std::span<const DraftingSample> samples, bool first) {
  bool all = true;
  if (draft_model_ == nullptr) {
    Scheduler::PlanDrafts(samples, first, &draft_plan_);
    ForwardWithRoom(draft_plan_);
  } else {
    all = draft_model_->Plan(samples, first, &draft_plan_);
    draft_model_->Forward(draft_plan_, logits_->host<float>(), vocab_);
  }
  counters_.drafts.draft_steps += std::ssize(draft_plan_.decodes);
  sampled_.clear();
  for (size_t i = 0; i < draft_plan_.decodes.size(); ++i) {
    const StepPlan::Decode& row = draft_plan_.decodes[i];
    sampled_.push_back(
        {.group = row.group, .sample = row.sample, .logit_row = row.logit_row, .drafted = true});
    if (draft_model_ == nullptr && device_sampler_ != nullptr && chosen_decodes_[i] >= 0) {
      sampled_.back().chosen = device_sampler_->token(chosen_decodes_[i]);
    }
  }
  SampleRows();
  return all;
}

void Core::FollowPrompts(const StepPlan& plan) {
  // While drafts do not pay, prompts are left to the next attempt.
  if (draft_model_ == nullptr || drafting_skipped_ > 0) return;
  try {
    draft_model_->FollowPrompts(plan);
  } catch (...) {
    LogDebug("the draft model does not follow a prompt: {}", MessageOf(std::current_exception()));
  }
}

bool Core::DraftBySteps(int64_t length) {
  bool all = true;
  std::vector<DraftingSample> going;
  for (StepDraft& one : step_drafts_) {
    const Sample& sample = one.group->samples[one.sample];
    if (sample.constraint != nullptr) one.constraint = sample.constraint->Clone();
    going.push_back({one.group, one.sample});
  }
  try {
    for (int64_t i = 0; i < length && !going.empty(); ++i) {
      const Clock::time_point start = Clock::now();
      all = DraftStep(going, i == 0) && all;
      going.clear();
      for (const Sampled& row : sampled_) {
        if (AppendDrafted(row)) going.push_back({row.group, row.sample});
      }
      std::erase_if(going, [&](const DraftingSample& one) {
        const auto same = [&](const StepDraft& draft) {
          return draft.group == one.group && draft.sample == one.sample;
        };
        return std::ranges::find_if(step_drafts_, same)->most <= i + 1;
      });
      StepCosts& costs = i == 0 ? drafting_costs_.first : drafting_costs_.others;
      costs.Measure(std::ssize(draft_plan_.decodes), SecondsBetween(start, Clock::now()));
    }
  } catch (...) {  // what has been drafted until then is verified; a lost device fails there, too
    LogDebug("a draft ends: {}", MessageOf(std::current_exception()));
  }
  for (StepDraft& one : step_drafts_) {
    Sample& sample = one.group->samples[one.sample];
    const std::vector<int32_t>& drafted = sample.drafts->next;
    for (auto token = drafted.rbegin(); token != drafted.rend(); ++token) {
      sample.sampler.TakeBack(*token);
    }
    sample.generated -= std::ssize(drafted);
    sample.last_token = one.last_token;
    sample.tokens.resize(sample.tokens.size() - drafted.size());
    if (one.constraint != nullptr) sample.constraint = std::move(one.constraint);
    sample.prepared = true;
    one.group->channel->UpdateStats(
        [&](RequestStats& stats) { stats.drafts.draft_steps += std::ssize(drafted); });
    // The draft model keeps its rows: those that are accepted need not be computed again.
    if (draft_model_ == nullptr) TruncateRejected(*one.group, sample);
  }
  return all;
}

}  // namespace litecache::engine
