// Turns a step's logits into tokens: on the device if it can choose, otherwise on the host.
// core_allowed.cc says which tokens may come next.
#include <algorithm>
#include <exception>

#include "base/error.h"
#include "engine/core.h"
#include "engine/logits.h"
#include "engine/message_of.h"

namespace litecache::engine {

std::span<const float> Core::LogitRow(int64_t row) const {
  return {logits_->host<const float>() + row * vocab_, static_cast<size_t>(vocab_)};
}

void Core::MakeSamplers(Group* group) const {
  if (!group->samplers.empty()) return;
  const Request& request = group->request;
  for (int i = 0; i < request.n; ++i) {
    group->samplers.emplace_back(request.sampling, group->seed, i, request.prompt);
  }
}

// Lists of log-probabilities need whole rows on the host; so does the first token where not all may
// come.
void Core::IssueSampling(const StepPlan& plan) {
  Stream& stream = *backend_.stream;
  device_sampler_->Clear();
  CollectAllowed(plan);
  chosen_decodes_.clear();
  chosen_verifying_.clear();
  for (size_t i = 0; i < plan.decodes.size(); ++i) {
    const StepPlan::Decode& row = plan.decodes[i];
    const Sample& sample = row.group->samples[row.sample];
    const Request& request = row.group->request;
    const int logprobs = request.logprobs;
    int64_t chosen = -1;
    if (logprobs <= 0 && (!Restricted(request, &sample) || !allowed_[i].empty())) {
      chosen = device_sampler_->Add(sample.sampler, row.logit_row, logprobs == 0, allowed_[i]);
    }
    if (chosen < 0) device_sampler_->Receive(stream, row.logit_row, 1);
    chosen_decodes_.push_back(chosen);
    chosen_verifying_.push_back(AddVerifying(row));
  }
  chosen_prompts_.clear();
  for (const StepPlan::Prefill& part : plan.prefills) {
    const int64_t chosen = AddFirstTokens(part);
    if (chosen < 0 && part.logit_rows > 0) {
      device_sampler_->Receive(stream, part.logit_row, part.logit_rows);
    }
    chosen_prompts_.push_back(chosen);
  }
  device_sampler_->Issue(stream);
}

int64_t Core::AddVerifying(const StepPlan::Decode& row) {
  if (row.drafted == 0) return -1;
  Sample& sample = row.group->samples[row.sample];
  const Request& request = row.group->request;
  const auto drafted = std::span(sample.drafts->next).first(static_cast<size_t>(row.drafted));
  int64_t first = -1;
  size_t accepted = 0;
  if (request.logprobs <= 0 && !Restricted(request, &sample)) {
    while (accepted < drafted.size()) {
      sample.sampler.Accept(drafted[accepted++]);
      const int64_t chosen =
          device_sampler_->Add(sample.sampler, row.logit_row + static_cast<int64_t>(accepted),
                               request.logprobs == 0, {});
      if (accepted == 1) first = chosen;
      if (chosen < 0) {
        first = -1;
        break;
      }
    }
    for (size_t i = accepted; i > 0; --i) sample.sampler.TakeBack(drafted[i - 1]);
  }
  if (first < 0) device_sampler_->Receive(*backend_.stream, row.logit_row + 1, row.drafted);
  return first;
}

int64_t Core::AddFirstTokens(const StepPlan::Prefill& part) {
  Group* group = part.group;
  const bool ends = part.begin + part.count == group->prompt_size();
  const Request& request = group->request;
  if (group->all_logits() || !ends || !request.generate || Restricted(request, nullptr) ||
      request.logprobs > 0) {
    return -1;
  }
  MakeSamplers(group);
  int64_t first = -1;
  for (const Sampler& sampler : group->samplers) {
    const int64_t chosen = device_sampler_->Add(sampler, part.logit_row, request.logprobs == 0, {});
    if (chosen < 0) return -1;
    if (first < 0) first = chosen;
  }
  return first;
}

void Core::ReceiveUndecided() {
  std::vector<Sampled*> rows;
  for (Sampled& row : sampled_) {
    if (row.chosen && row.chosen->status == DeviceToken::Status::kUndecided) rows.push_back(&row);
  }
  if (rows.empty()) return;
  std::string error;
  try {
    for (const Sampled* row : rows) device_sampler_->Receive(*backend_.stream, row->logit_row, 1);
    backend_.stream->Synchronize();
  } catch (...) {
    error = MessageOf(std::current_exception());
  }
  for (Sampled* row : rows) {
    row->chosen.reset();
    row->error = error;
  }
}

void Core::SampleRows() {
  ReceiveUndecided();
  const auto count = static_cast<int64_t>(sampled_.size());
  const auto sample = [this](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      Sampled& row = sampled_[static_cast<size_t>(i)];
      if (!row.error.empty()) continue;
      try {
        SampleRow(&row, &scratch_[static_cast<size_t>(worker)]);
      } catch (...) {
        row.error = MessageOf(std::current_exception());
      }
    }
  };
  // For a small vocabulary, waking the pool costs more than a pass over the row.
  constexpr int64_t kParallelValues = 1 << 17;
  const auto on_host = std::count_if(sampled_.begin(), sampled_.end(),
                                     [](const Sampled& row) { return !row.chosen; });
  if (backend_.pool != nullptr && on_host > 1 && on_host * vocab_ >= kParallelValues) {
    backend_.pool->ParallelFor(count, 1, sample);
  } else {
    sample(0, count, 0);
  }
}

void Core::SampleRow(Sampled* row, SamplerScratch* scratch) {
  const std::span<const float> logits = LogitRow(row->logit_row);
  const bool finite =
      row->chosen ? row->chosen->status != DeviceToken::Status::kNotFinite : AllFinite(logits);
  if (!finite) throw Error("the model's logits are not finite (NaN or infinity)");
  Sample& sample = row->group->samples[row->sample];
  if (row->chosen) {
    row->token = row->chosen->token;
    sample.sampler.Accept(row->token);
  } else if (!Restricted(row->group->request, &sample)) {
    row->token = sample.sampler.Sample(logits, scratch);
  } else {
    AllowedTokens(*row->group, &sample, &scratch->allowed);
    row->token = sample.sampler.SampleAllowed(logits, scratch);
  }
  if (sample.constraint != nullptr) {
    // A token that ends the answer is not passed to the constraint.
    const std::vector<int32_t>& stop_ids = row->group->stop_ids;
    if (!std::binary_search(stop_ids.begin(), stop_ids.end(), row->token)) {
      sample.constraint->Accept(row->token);
      sample.prepared = false;
    }
    row->complete = sample.constraint->Finished();
  }
  const int logprobs = row->group->request.logprobs;
  if (logprobs < 0 || row->drafted) return;
  if (row->chosen) {
    row->logprob = {row->token, row->chosen->logprob};
    return;
  }
  const double log_sum = LogSumExp(logits);
  row->logprob = LogprobOf(logits, row->token, log_sum);
  row->top_logprobs = TopLogprobs(logits, static_cast<size_t>(logprobs), log_sum);
}

}  // namespace litecache::engine
