#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace litecache::engine {

void StepPlan::Clear() {
  step.sequences.clear();
  step.rows = 0;
  step.decode_rows = 0;
  tokens.clear();
  positions.clear();
  logit_rows.clear();
  decodes.clear();
  prefills.clear();
}

std::vector<Group*> Scheduler::Admit() {
  std::vector<Group*> admitted;
  if (waiting_.empty()) return admitted;
  kv::TierBytes bytes;
  int64_t width = 0;
  for (const auto& group : running_) {
    bytes += group->reserved();
    width += group->width();
  }
  while (!waiting_.empty()) {
    Group& group = *waiting_.front();
    bytes += group.reserved();
    width += group.width();
    if (!bytes.FitsIn(limits_.kv_bytes) || width > limits_.max_batch) break;
    group.admitted = true;
    admitted.push_back(&group);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return admitted;
}

void Scheduler::AddDecodes(Group* group, StepPlan* plan) const {
  if (group->score != nullptr && group->prefilling() &&
      group->prefilled >= group->score->decode_from()) {
    AddScoreDecode(group, plan);
    return;
  }
  for (size_t i = 0; i < group->samples.size(); ++i) {
    const Sample& sample = group->samples[i];
    if (!sample.live) continue;
    // The last token sampled is the one that is not in the cache yet.
    const int64_t past = group->prompt_size() + sample.generated - 1;
    plan->decodes.push_back({group, i, static_cast<int64_t>(plan->logit_rows.size())});
    plan->logit_rows.push_back(plan->step.rows);
    plan->step.sequences.push_back({sample.sequence, plan->step.rows, 1, past, true});
    plan->step.rows += 1;
    plan->step.decode_rows += 1;
    plan->tokens.push_back(sample.last_token);
    plan->positions.push_back(static_cast<int32_t>(past));
  }
}

void Scheduler::AddScoreDecode(Group* group, StepPlan* plan) const {
  const int64_t at = group->prefilled;
  plan->prefills.push_back({group, at, 1, static_cast<int64_t>(plan->logit_rows.size()), 1});
  plan->logit_rows.push_back(plan->step.rows);
  plan->step.sequences.push_back({group->prompt_sequence, plan->step.rows, 1, at, true});
  plan->step.rows += 1;
  plan->step.decode_rows += 1;
  plan->tokens.push_back(group->prompt()[static_cast<size_t>(at)]);
  plan->positions.push_back(static_cast<int32_t>(at));
}

void Scheduler::AddPrefill(Group* group, Budget* budget, StepPlan* plan) const {
  const auto first_logit = static_cast<int64_t>(plan->logit_rows.size());
  int64_t count = std::min(budget->rows, group->prompt_size() - group->prefilled);
  if (group->score != nullptr) {
    count = std::min({count, budget->score_rows, group->score->decode_from() - group->prefilled});
  }
  if (count <= 0) return;
  budget->rows -= count;
  if (group->score != nullptr) budget->score_rows -= count;
  StepPlan::Prefill part{group, group->prefilled, count, first_logit, 0};
  if (group->score != nullptr) {
    part.logit_rows = count;
  } else if (part.begin + count == group->prompt_size()) {
    part.logit_rows = 1;
  }
  plan->step.sequences.push_back({group->prompt_sequence, plan->step.rows, count, part.begin});
  for (int64_t i = 0; i < count; ++i) {
    plan->tokens.push_back(group->prompt()[static_cast<size_t>(part.begin + i)]);
    plan->positions.push_back(static_cast<int32_t>(part.begin + i));
    if (i >= count - part.logit_rows) plan->logit_rows.push_back(plan->step.rows + i);
  }
  plan->step.rows += count;
  plan->prefills.push_back(part);
}

void Scheduler::Plan(StepPlan* plan) const {
  plan->Clear();
  for (const auto& group : running_) AddDecodes(group.get(), plan);
  Budget budget{limits_.prefill_chunk, limits_.score_rows};
  if (!plan->decodes.empty() && limits_.prefill_chunk_beside_decode > 0) {
    budget.rows = std::min(budget.rows, limits_.prefill_chunk_beside_decode);
  }
  for (const auto& group : running_) {
    if (group->prefilling()) AddPrefill(group.get(), &budget, plan);
  }
}

void Scheduler::PlanAlone(Group* group, StepPlan* plan) const {
  plan->Clear();
  AddDecodes(group, plan);
  Budget budget{limits_.prefill_chunk, limits_.score_rows};
  if (group->prefilling()) AddPrefill(group, &budget, plan);
}

void Scheduler::RemoveEnded() {
  const auto ended = [](const std::unique_ptr<Group>& group) { return group->ended; };
  running_.remove_if(ended);
  std::erase_if(waiting_, ended);
}

}  // namespace litecache::engine
