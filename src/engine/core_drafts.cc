// Drafts: proposed before a step, and followed after it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/core.h"

namespace litecache::engine {

void Core::PrepareDrafts() {
  const kv::Cache& cache = *backend_.cache;
  if (!cache.CanTruncate()) {
    throw Unsupported(
        "draft: KV policy '{}' cannot take back rejected tokens here; use {}", cache.policy(),
        cache.policy() == "litecache" ? "another retriever than quest" : "full or litecache");
  }
  if (options_.draft_sparse && !cache.SelectsRows()) {
    throw Unsupported(
        "draft = sparse: every step of KV policy '{}' attends all rows, so none is faster than "
        "another; use policy litecache, or draft = lookup",
        cache.policy());
  }
  if (backend_.draft_decoder == nullptr) return;
  draft_model_ = std::make_unique<DraftModel>(
      *backend_.device, *backend_.stream, *backend_.draft_decoder, *backend_.draft_cache,
      options_.max_batch + options_.prefill_chunk, options_.max_batch);
}

std::unique_ptr<SampleDrafts> Core::StartDrafts(Group* group) {
  auto drafts = std::make_unique<SampleDrafts>(group->request.prompt);
  if (draft_model_ == nullptr) return drafts;
  const bool first = group->samples.size() == 1;  // this one
  drafts->sequence = first ? std::exchange(group->draft_sequence, 0)
                           : draft_model_->Fork(group->samples[0].drafts->sequence);
  return drafts;
}

void Core::ProposeDrafts() {
  int64_t rows = 0;
  bool prefilling = false;
  for (const auto& group : scheduler_.running()) {
    prefilling = prefilling || (group->prefilling() && group->prefix_wait == nullptr);
    for (Sample& sample : group->samples) {
      if (!sample.live) continue;
      sample.drafts->next.clear();
      if (sample.prepared) ++rows;
    }
  }
  // A step with prompt tokens takes as long as they do, and the prompts need its rows.
  if (prefilling) return;
  auto tokens = static_cast<double>(rows);
  int64_t left = options_.score_rows;  // logits that the step has room for
  step_drafts_.clear();
  std::vector<double> rates;  // of step_drafts_
  for (const auto& group : scheduler_.running()) {
    for (size_t i = 0; i < group->samples.size(); ++i) {
      Sample& sample = group->samples[i];
      if (!sample.live || !sample.prepared) continue;
      // The last token of an answer is never fed back.
      const int64_t most =
          std::min({options_.draft_tokens, left, group->max_tokens - sample.generated - 1});
      if (most <= 0) continue;
      SampleDrafts& drafts = *sample.drafts;
      const int64_t length = ProposeLookup(most, rows, &drafts, &tokens);
      rows += length;
      left -= length;
      const int64_t by_steps = length > 0 ? 0 : DraftedBySteps(*group, sample, most);
      if (by_steps <= 0) continue;
      drafts.match = Acceptance::kBySteps;
      step_drafts_.push_back({group.get(), i, by_steps, sample.last_token});
      rates.push_back(drafts.acceptance.Rate(Acceptance::kBySteps));
    }
  }
  if (step_drafts_.empty()) return;
  drafting_pays_ = false;
  if (options_.draft_sparse && !options_.draft_always && !RowsDominate()) return;
  const int64_t most = std::min(options_.draft_tokens, left / std::ssize(step_drafts_));
  int64_t length = options_.draft_always
                       ? most
                       : StepsLength(step_costs_, drafting_costs_, rates, most, rows, tokens);
  drafting_pays_ = length > 0;
  if (drafting_pays_) {
    drafting_skipped_ = 0;
    drafting_retry_ = kFirstRetry;
  } else if (++drafting_skipped_ >= drafting_retry_) {
    // What such steps cost changes with the contexts, so they are measured again.
    length = std::min(most, kFewDrafts);
  }
  if (length > 0) {
    // A draft model that has not drafted for a while first computes what it lacks.
    const bool drafted = DraftBySteps(length);
    if (!drafting_pays_ && drafted) {
      drafting_skipped_ = 0;
      drafting_retry_ = std::min(2 * drafting_retry_, kLastRetry);
    }
    return;
  }
  for (const StepDraft& one : step_drafts_) {
    one.group->samples[one.sample].drafts->acceptance.Skip(Acceptance::kBySteps);
  }
}

bool Core::RowsDominate() const {
  // On a GPU such a cache's rows come over a link, dozens of times slower than weights are read.
  if (backend_.device->type() != DeviceType::kCpu) return true;
  // A decode step reads at least the weights, at a ratio of 2 a third of what a step reads that
  // attends all rows. SmolLM2-135M in 4 bits gains nothing on a CPU at 1.8, the shipped model
  // four fifths at 3.9 (lab/notes/drafts.md).
  constexpr uint64_t kLeastRatio = 2;
  int64_t tokens = 0;
  for (const StepDraft& one : step_drafts_) {
    tokens += backend_.cache->Length(one.group->samples[one.sample].sequence);
  }
  return static_cast<uint64_t>(tokens) * backend_.cache->layout().token_bytes() >=
         kLeastRatio * backend_.decoder->weight_bytes_per_step(std::ssize(step_drafts_));
}

int64_t Core::DraftedBySteps(const Group& group, const Sample& sample, int64_t most) const {
  if (draft_model_ == nullptr) return options_.draft_sparse ? most : 0;
  if (sample.drafts->sequence == 0) return 0;
  return std::min(most, draft_model_->Room(group.prompt_size() + sample.generated));
}

int64_t Core::ProposeLookup(int64_t most, int64_t rows, SampleDrafts* drafts, double* tokens) {
  if (!options_.draft_lookup) return 0;
  drafts->match = drafts->lookup.Propose(most, &drafts->next);
  if (drafts->match == 0) return 0;
  const double rate = drafts->acceptance.Rate(drafts->match);
  int64_t length =
      options_.draft_always ? most : DraftLength(step_costs_, rate, most, rows, tokens);
  if (length == 0) drafts->acceptance.Skip(drafts->match);
  // A match costs nothing, but steps may be right more often.
  if (drafting_pays_ && !options_.draft_always &&
      rate < drafts->acceptance.Rate(Acceptance::kBySteps)) {
    length = 0;
  }
  drafts->next.resize(static_cast<size_t>(length));
  return length;
}

void Core::FinishDrafts(const StepPlan& plan) {
  struct Following {
    const StepPlan::Decode* row = nullptr;
    int64_t chosen = -1;  // the index of the device's first token, or -1
    int64_t accepted = 0;
    bool ended = false;
  };
  std::vector<Following> following;
  for (size_t i = 0; i < plan.decodes.size(); ++i) {
    following.push_back({.row = &plan.decodes[i],
                         .chosen = device_sampler_ == nullptr ? -1 : chosen_verifying_[i]});
  }
  // Row i of every draft, then row i + 1: a sample's choice depends on the one before.
  for (int64_t i = 0; i < options_.draft_tokens; ++i) {
    sampled_.clear();
    for (Following& one : following) {
      const StepPlan::Decode& row = *one.row;
      if (one.ended || i >= row.drafted || row.group->ended) continue;
      Sample& sample = row.group->samples[row.sample];
      one.ended = sample.last_token != sample.drafts->next[static_cast<size_t>(i)];
      if (one.ended) continue;
      one.ended = !sample.live;
      if (!one.ended && sample.constraint != nullptr && !sample.prepared) {
        try {
          sample.prepared = sample.constraint->Prepare(kMaskPiece);
        } catch (...) {
          sample.prepared = true;  // Mask() throws it again, which ends the request
        }
        one.ended = !sample.prepared;
      }
      if (one.ended) continue;
      ++one.accepted;
      sampled_.push_back({row.group, row.sample, row.logit_row + i + 1});
      if (one.chosen >= 0) sampled_.back().chosen = device_sampler_->token(one.chosen + i);
    }
    if (sampled_.empty()) break;
    SampleRows();
    for (Sampled& row : sampled_) Deliver(&row);
  }
  for (const Following& one : following) {
    Group* group = one.row->group;
    Sample& sample = group->samples[one.row->sample];
    if (one.row->drafted > 0) {
      // What an answer's end cut off says nothing about the draft.
      sample.drafts->acceptance.Record(sample.drafts->match,
                                       sample.live ? one.row->drafted : one.accepted, one.accepted);
    }
    if (sample.live && !group->ended) TruncateRejected(*group, sample);
    const auto count = [&](DraftStats* stats) {
      stats->drafted += one.row->drafted;
      stats->accepted += one.accepted;
      ++stats->passes;
    };
    count(&counters_.drafts);
    group->channel->UpdateStats([&](RequestStats& stats) { count(&stats.drafts); });
  }
}

void Core::TruncateRejected(const Group& group, const Sample& sample) {
  if (options_.draft_tokens == 0) return;
  // The last token is not in the cache.
  const int64_t rows = group.prompt_size() + sample.generated - 1;
  if (backend_.cache->Length(sample.sequence) > rows) {
    backend_.cache->Truncate(sample.sequence, rows);
  }
  if (draft_model_ != nullptr) draft_model_->Truncate(sample.drafts->sequence, rows);
}

}  // namespace litecache::engine
