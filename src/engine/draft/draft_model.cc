#include "engine/draft/draft_model.h"

#include <algorithm>
#include <limits>

namespace litecache::engine {

DraftModel::DraftModel(Device& device, Stream& stream, model::Decoder& decoder, kv::Cache& cache,
                       int64_t rows, int64_t sequences)
    : stream_(stream),
      decoder_(decoder),
      cache_(cache),
      rows_(rows),
      logits_(device.CreateMirror(static_cast<size_t>(sequences * decoder.config().vocab) *
                                  sizeof(float))) {}

void DraftModel::Begin(Group* group, const std::list<std::unique_ptr<Group>>& running) {
  constexpr int64_t kLeastAnswer = 3;  // the first token needs no draft, and the last one is none
  if (group->score != nullptr || !group->request.generate || group->max_tokens < kLeastAnswer ||
      Room(group->prompt_size()) < 1) {
    return;
  }
  const int64_t tokens =
      std::min(group->prompt_size() + group->max_tokens, decoder_.config().max_context);
  // Samples may have forked before their prompt was computed, so each counts in full.
  const kv::TierBytes bytes = cache_.BytesFor(tokens);
  kv::TierBytes taken = static_cast<uint64_t>(group->width()) * bytes;
  for (const auto& other : running) {
    taken += static_cast<uint64_t>(other->width()) * other->draft_bytes;
  }
  if (!taken.FitsIn(cache_.GetStats().capacity)) return;
  group->draft_sequence = cache_.Create();
  group->draft_bytes = bytes;
}

kv::SequenceId DraftModel::Fork(kv::SequenceId parent) {
  return parent == 0 ? 0 : cache_.Fork(parent);
}

void DraftModel::Release(kv::SequenceId sequence) {
  if (sequence != 0) cache_.Release(sequence);
}

void DraftModel::Truncate(kv::SequenceId sequence, int64_t tokens) {
  if (sequence != 0 && cache_.Length(sequence) > tokens) cache_.Truncate(sequence, tokens);
}

int64_t DraftModel::Add(kv::SequenceId sequence, const Group& group,
                        std::span<const int32_t> answer, int64_t end, int64_t most,
                        StepPlan* plan) const {
  const int64_t past = cache_.Length(sequence);
  const int64_t rows = std::min(end - past, most);
  if (rows <= 0) return 0;
  for (int64_t at = past; at < past + rows; ++at) {
    const int64_t in_answer = at - group.prompt_size();
    const int32_t token = in_answer < 0 ? group.prompt()[static_cast<size_t>(at)]
                                        : answer[static_cast<size_t>(in_answer)];
    // A row that only pads the model's vocabulary may be missing; the draft is then a guess.
    plan->tokens.push_back(token < decoder_.config().vocab ? token : 0);
    plan->positions.push_back(static_cast<int32_t>(at));
  }
  plan->step.sequences.push_back(
      {.id = sequence, .first_row = plan->step.rows, .rows = rows, .past = past});
  plan->step.rows += rows;
  return rows;
}

void DraftModel::FollowPrompts(const StepPlan& of_model) {
  prompts_.Clear();
  for (const StepPlan::Prefill& part : of_model.prefills) {
    const Group& group = *part.group;
    if (group.ended || group.draft_sequence == 0) continue;
    Add(group.draft_sequence, group, {}, part.begin + part.count, rows_ - prompts_.step.rows,
        &prompts_);
  }
  if (!prompts_.empty()) Forward(prompts_, nullptr, 0);
}

bool DraftModel::Plan(std::span<const DraftingSample> samples, bool first, StepPlan* plan) {
  plan->Clear();
  bool all = true;
  for (const DraftingSample& one : samples) {
    const Sample& sample = one.group->samples[one.sample];
    const kv::SequenceId sequence = sample.drafts->sequence;
    const int64_t end = one.group->prompt_size() + sample.generated;
    const int64_t lacking = end - cache_.Length(sequence);
    if (Add(sequence, *one.group, sample.tokens, end, rows_ - plan->step.rows, plan) < lacking) {
      all = false;
      continue;
    }
    if (!first) {  // these rows can be taken back
      plan->step.sequences.back().decode = plan->step.sequences.back().drafted = true;
      ++plan->step.decode_rows;
    }
    plan->decodes.push_back({one.group, one.sample, std::ssize(plan->logit_rows), 0});
    plan->logit_rows.push_back(plan->step.rows - 1);
  }
  return all;
}

void DraftModel::Forward(const StepPlan& plan, float* logits, int64_t vocab) {
  const auto rows = std::ssize(plan.logit_rows);
  const int64_t own = decoder_.config().vocab;
  decoder_.Forward(stream_, plan.step, plan.tokens, plan.positions, cache_, plan.logit_rows,
                   MatrixView::Of(logits_->device<float>(), rows, own));
  logits_->Receive(stream_, static_cast<size_t>(rows * own) * sizeof(float));
  stream_.Synchronize();
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = logits_->host<const float>() + row * own;
    float* to = logits + row * vocab;
    float* const end = std::copy_n(from, std::min(own, vocab), to);
    std::fill(end, to + vocab, std::numeric_limits<float>::lowest());
  }
}

}  // namespace litecache::engine
