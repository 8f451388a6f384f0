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

bool StepPlan::HasEnded() const {
  const auto ended = [](const auto& row) { return row.group->ended; };
  return std::ranges::any_of(decodes, ended) || std::ranges::any_of(prefills, ended);
}

void Scheduler::Enqueue(std::unique_ptr<Group> group) {
  // Only waiting requests count, not those that have left the queue, so cancelling costs no turn.
  const uint64_t client = group->client();
  const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                 [&](const auto& other) { return other->client() == client; });
  const auto started = started_turns_.find(client);
  group->turn = turn_;
  if (last != waiting_.rend()) {
    group->turn = std::max(turn_, (*last)->turn + 1);
  } else if (started != started_turns_.end()) {
    group->turn = std::max(turn_, started->second + 1);
  }
  const auto after =
      std::upper_bound(waiting_.begin(), waiting_.end(), group->turn,
                       [](uint64_t turn, const auto& other) { return turn < other->turn; });
  waiting_.insert(after, std::move(group));
}

std::vector<Group*> Scheduler::Admit() {
  std::vector<Group*> admitted;
  if (waiting_.empty()) {
    // Only clients with running requests have used their turn; nothing is stored about the others.
    if (started_turns_.size() > running_.size()) {
      std::erase_if(started_turns_, [this](const auto& started) {
        return std::none_of(running_.begin(), running_.end(),
                            [&](const auto& group) { return group->client() == started.first; });
      });
    }
    return admitted;
  }
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
    turn_ = group.turn;
    started_turns_[group.client()] = turn_;
    group.admitted = true;
    admitted.push_back(&group);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  std::erase_if(started_turns_, [this](const auto& started) { return started.second < turn_; });
  return admitted;
}

void Scheduler::AddDecodes(Group* group, bool drafted, StepPlan* plan) const {
  if (!drafted && group->score != nullptr && group->prefilling() &&
      group->prefilled >= group->score->decode_from()) {
    AddScoreDecode(group, plan);
    return;
  }
  for (size_t i = 0; i < group->samples.size(); ++i) {
    const Sample& sample = group->samples[i];
    if (!sample.live || !sample.prepared) continue;
    if ((limits_.verified || !sample.draft().empty()) == drafted) {
      AddSample(group, i, /*decode=*/!drafted, /*drafts=*/false, plan);
    }
  }
}

void Scheduler::AddSample(Group* group, size_t index, bool decode, bool drafts, StepPlan* plan) {
  const Sample& sample = group->samples[index];
  const std::span<const int32_t> draft = decode ? std::span<const int32_t>() : sample.draft();
  // The last sampled token is not in the cache yet.
  const int64_t past = group->prompt_size() + sample.generated - 1;
  const auto rows = 1 + static_cast<int64_t>(draft.size());
  plan->decodes.push_back({group, index, static_cast<int64_t>(plan->logit_rows.size()), rows - 1});
  plan->step.sequences.push_back({.id = sample.sequence,
                                  .first_row = plan->step.rows,
                                  .rows = rows,
                                  .past = past,
                                  .decode = decode,
                                  .drafted = !decode || drafts});
  plan->tokens.push_back(sample.last_token);
  plan->tokens.insert(plan->tokens.end(), draft.begin(), draft.end());
  for (int64_t row = 0; row < rows; ++row) {
    plan->logit_rows.push_back(plan->step.rows + row);
    plan->positions.push_back(static_cast<int32_t>(past + row));
  }
  plan->step.rows += rows;
  if (decode) plan->step.decode_rows += 1;
}

void Scheduler::AddScoreDecode(Group* group, StepPlan* plan) const {
  const int64_t at = group->prefilled;
  plan->prefills.push_back({group, at, 1, static_cast<int64_t>(plan->logit_rows.size()), 1});
  plan->logit_rows.push_back(plan->step.rows);
  plan->step.sequences.push_back({.id = group->prompt_sequence,
                                  .first_row = plan->step.rows,
                                  .rows = 1,
                                  .past = at,
                                  .decode = !limits_.verified,
                                  .drafted = limits_.verified});
  plan->step.rows += 1;
  if (!limits_.verified) plan->step.decode_rows += 1;
  plan->tokens.push_back(group->prompt()[static_cast<size_t>(at)]);
  plan->positions.push_back(static_cast<int32_t>(at));
}

void Scheduler::AddPrefill(Group* group, Budget* budget, StepPlan* plan) const {
  if (group->prefix_wait != nullptr) return;
  const auto first_logit = static_cast<int64_t>(plan->logit_rows.size());
  const auto most = [&](int64_t left, int64_t chunk) {
    return limits_.whole_chunks && left > 0 ? chunk : left;
  };
  int64_t count =
      std::min(most(budget->rows, limits_.prefill_chunk), group->decodes_from() - group->prefilled);
  if (group->all_logits()) {
    count = std::min(count, most(budget->logit_rows, limits_.score_rows));
  }
  if (!group->keep_at.empty()) count = std::min(count, group->keep_at.front() - group->prefilled);
  if (count <= 0) return;
  // The first tokens need the mask of their constraint.
  if (!group->prepared && group->prefilled + count == group->prompt_size()) return;
  budget->rows -= count;
  if (group->all_logits()) budget->logit_rows -= count;
  StepPlan::Prefill part{group, group->prefilled, count, first_logit, 0};
  if (group->all_logits()) {
    part.logit_rows = count;
  } else if (part.begin + count == group->prompt_size()) {
    part.logit_rows = 1;
  }
  const int64_t end = part.begin + count;
  const bool ends_prompt = group->score != nullptr
                               ? end == group->score->decode_from() && end < group->prompt_size()
                               : end == group->prompt_size();
  plan->step.sequences.push_back(
      {group->prompt_sequence, plan->step.rows, count, part.begin, false, ends_prompt});
  for (int64_t i = 0; i < count; ++i) {
    plan->tokens.push_back(group->prompt()[static_cast<size_t>(part.begin + i)]);
    plan->positions.push_back(static_cast<int32_t>(part.begin + i));
    if (i >= count - part.logit_rows) plan->logit_rows.push_back(plan->step.rows + i);
  }
  plan->step.rows += count;
  plan->prefills.push_back(part);
}

std::vector<Group*> Scheduler::PrefillOrder() const {
  std::vector<Group*> order;
  for (const auto& group : running_) {
    if (group->prefilling() && group->prefix_wait == nullptr) order.push_back(group.get());
  }
  if (order.size() < 2) return order;
  // Clients in the order of their oldest requests; a client's requests keep their order.
  std::vector<uint64_t> clients;
  for (const Group* group : order) {
    if (std::find(clients.begin(), clients.end(), group->client()) == clients.end()) {
      clients.push_back(group->client());
    }
  }
  const auto last = std::find(clients.begin(), clients.end(), prefilled_client_);
  if (last != clients.end()) std::rotate(clients.begin(), last + 1, clients.end());
  const auto place = [&](const Group* group) {
    return std::find(clients.begin(), clients.end(), group->client()) - clients.begin();
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Group* a, const Group* b) { return place(a) < place(b); });
  return order;
}

void Scheduler::Plan(StepPlan* plan) {
  plan->Clear();
  for (const bool drafted : {false, true}) {
    for (const auto& group : running_) AddDecodes(group.get(), drafted, plan);
  }
  Budget budget{limits_.prefill_chunk, limits_.score_rows};
  if (!plan->decodes.empty() && limits_.prefill_chunk_beside_decode > 0) {
    budget.rows = std::min(budget.rows, limits_.prefill_chunk_beside_decode);
  }
  const std::vector<Group*> order = PrefillOrder();
  for (Group* group : order) AddPrefill(group, &budget, plan);
  if (!order.empty()) prefilled_client_ = order.front()->client();
}

void Scheduler::PlanAlone(Group* group, StepPlan* plan) const {
  plan->Clear();
  for (const bool drafted : {false, true}) AddDecodes(group, drafted, plan);
  Budget budget{limits_.prefill_chunk, limits_.score_rows};
  if (group->prefilling()) AddPrefill(group, &budget, plan);
}

void Scheduler::PlanDrafts(std::span<const DraftingSample> samples, bool first, StepPlan* plan) {
  plan->Clear();
  for (const DraftingSample& one : samples) {
    AddSample(one.group, one.sample, /*decode=*/true, /*drafts=*/true, plan);
    plan->step.sequences.back().keeps_rows = !first;
  }
}

void Scheduler::RemoveEnded() {
  const auto ended = [](const std::unique_ptr<Group>& group) { return group->ended; };
  running_.remove_if(ended);
  std::erase_if(waiting_, ended);
}

}  // namespace litecache::engine
