// Runs steps. core_requests.cc accepts and ends requests, core_sampling.cc turns a step's logits
// into tokens, core_allowed.cc says which may come next.
#include "engine/core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "device/machine.h"
#include "engine/message_of.h"
#include "engine/step_parts.h"

namespace litecache::engine {
namespace {

// Time that shutdown may spend on writing blocks to the prefix store.
constexpr std::chrono::seconds kLastWrites{10};

}  // namespace

Core::Core(const Backend& backend, const CoreOptions& options)
    : backend_(backend),
      options_(options),
      limits_{backend.decoder->config().vocab, options.context, options.max_batch,
              static_cast<bool>(backend.token_text)},
      vocab_(backend.decoder->config().vocab),
      budget_{backend.cache, backend.cache->GetStats().capacity},
      scheduler_({budget_.bytes, options.max_batch, options.prefill_chunk,
                  options.prefill_chunk_beside_decode, options.score_rows, options.decode_rows > 0,
                  options.draft_tokens > 0 && backend.cache->SelectsRows()}),
      step_costs_(backend.device->type() == DeviceType::kCpu ? StepCosts::kRowOnCpu
                                                             : StepCosts::kRowOnGpu),
      drafting_costs_(step_costs_),
      sends_beside_steps_(backend.device->type() != DeviceType::kCpu && options.decode_rows == 0),
      scratch_(backend.pool != nullptr ? static_cast<size_t>(backend.pool->size()) : 1) {
  LC_CHECK(options.max_batch >= 1 && options.prefill_chunk >= 1 && options.score_rows >= 1);
  logits_ = backend.device->CreateMirror(
      static_cast<size_t>((options.max_batch + options.score_rows) * vocab_) * sizeof(float));
  if (options.draft_tokens > 0) PrepareDrafts();
  if (options.sample_on_device) {
    device_sampler_ = CreateDeviceSampler(
        *backend.device, *backend.stream, *logits_,
        SampledRows(options.max_batch, options.score_rows, options.draft_tokens), vocab_);
  }
  if (options.prefixes && backend.cache->SharesPrefixes()) {
    prefixes_ = std::make_unique<PrefixReuse>(*backend.cache, *options.prefixes,
                                              [doorbell = doorbell_] { doorbell->Ring(); });
  }
  UpdateStats();
  thread_ = std::thread([this] { Loop(); });
}

Core::~Core() {
  stop_ = true;
  doorbell_->Ring();
  thread_.join();
}

EngineStats Core::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Core::Loop() {
  UseInThisThread(*backend_.device);
  while (!stop_) {
    Prepare();
    const bool prepared = PrepareConstraints();
    if (options_.draft_tokens > 0) ProposeDrafts();
    scheduler_.Plan(&plan_);
    if (plan_.empty()) {
      // No request runs, or all of them wait for rows from disk, or for masks.
      Send();
      step_seconds_ = 0;
      if (prepared) doorbell_->Wait();
      continue;
    }
    RunStep();
    UpdateStats();
    if (!sends_beside_steps_) Send();
  }
  Prepare();  // also ends requests that were submitted last
  for (const auto& group : scheduler_.running()) End(group.get(), FinishReason::kCancelled);
  for (const auto& group : scheduler_.waiting()) End(group.get(), FinishReason::kCancelled);
  scheduler_.RemoveEnded();
  UpdateStats();
  Send();
  if (prefixes_ != nullptr) prefixes_->Close(kLastWrites);
}

void Core::Prepare() {
  std::vector<std::unique_ptr<Group>> incoming;
  {
    std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
  }
  for (auto& group : incoming) scheduler_.Enqueue(std::move(group));
  const auto end_cancelled = [this](const auto& groups) {
    for (const auto& group : groups) {
      if (group->cancelled()) End(group.get(), FinishReason::kCancelled);
    }
  };
  end_cancelled(scheduler_.running());
  end_cancelled(scheduler_.waiting());
  scheduler_.RemoveEnded();
  for (Group* group : scheduler_.Admit()) {
    try {
      if (prefixes_ != nullptr) {
        prefixes_->Begin(group, scheduler_.running());
      } else {
        group->prompt_sequence = backend_.cache->Create();
      }
      if (draft_model_ != nullptr) draft_model_->Begin(group, scheduler_.running());
    } catch (...) {  // the device is lost or out of memory
      End(group, FinishReason::kError, MessageOf(std::current_exception()));
    }
  }
  scheduler_.RemoveEnded();
  if (prefixes_ != nullptr) AdvancePrefixes();
  UpdateStats();
  if (!sends_beside_steps_) Send();
}

void Core::AdvancePrefixes() {
  try {
    prefixes_->Advance(scheduler_.running());
  } catch (...) {  // the device is lost: requests that wait for rows would wait forever
    const std::string message = MessageOf(std::current_exception());
    for (const auto& group : scheduler_.running()) {
      if (group->prefix_wait != nullptr) End(group.get(), FinishReason::kError, message);
    }
    scheduler_.RemoveEnded();
  }
}

void Core::RunStep() {
  const Clock::time_point now = Clock::now();
  for (const StepPlan::Prefill& part : plan_.prefills) {
    if (part.group->started) continue;
    part.group->started = now;
    if (part.group->channel == nullptr) continue;
    part.group->channel->UpdateStats([&](RequestStats& stats) {
      stats.queue_seconds = SecondsBetween(part.group->submitted, now);
    });
  }

  std::exception_ptr error;
  for (const StepPlan& step : StepsOf(plan_)) {
    // A sample's error ends its siblings, too; what follows is planned anew.
    if (step.HasEnded()) break;
    try {
      ForwardWithRoom(step);
    } catch (...) {
      error = std::current_exception();
      break;
    }
    Finish(step);
  }
  step_seconds_ = SecondsBetween(now, Clock::now());
  if (!error) {
    if (plan_.prefills.empty()) step_costs_.Measure(plan_.step.rows, step_seconds_);
    scheduler_.RemoveEnded();
    return;
  }
  // One of the requests may be the cause, but it is not known which. Each runs its part of the step
  // alone, oldest first, and ends if that fails, too; a failed step leaves the cache unchanged.
  LogDebug("a step of {} rows failed: {}", plan_.step.rows, MessageOf(error));
  const bool alone = scheduler_.running().size() == 1;
  for (const auto& owned : scheduler_.running()) {
    Group* group = owned.get();
    try {
      if (alone) std::rethrow_exception(error);
      scheduler_.PlanAlone(group, &retry_plan_);
      for (const StepPlan& step : StepsOf(retry_plan_)) {
        if (step.HasEnded()) break;
        ForwardWithRoom(step);
        Finish(step);
      }
    } catch (...) {
      End(group, FinishReason::kError, MessageOf(std::current_exception()));
    }
  }
  scheduler_.RemoveEnded();
}

std::span<const StepPlan> Core::StepsOf(const StepPlan& plan) {
  if (plan.empty()) return {};
  if (options_.decode_rows == 0) return {&plan, 1};
  parts_ = DividePlan(plan, options_.decode_rows);
  return parts_;
}

void Core::ForwardWithRoom(const StepPlan& plan) {
  while (true) {
    try {
      return Forward(plan);
    } catch (const CapacityError&) {
      // Admission ensures that running requests fit; kept prefixes may fill the rest.
      if (prefixes_ == nullptr || !prefixes_->EvictOne()) throw;
    }
  }
}

void Core::AllocateAhead(const StepPlan& plan) {
  if (plan.prefills.empty()) return;
  kv::TierBytes bytes = counters_.prefix.bytes;
  for (const auto& group : scheduler_.running()) {
    int64_t prefilled = group->prefilled;
    for (const StepPlan::Prefill& part : plan.prefills) {
      if (part.group == group.get()) prefilled += part.count;
    }
    bytes += prefilled < group->decodes_from() ? backend_.cache->BytesFor(prefilled)
                                               : group->provided.Total(group->width());
  }
  backend_.cache->AllocateAhead(bytes);
}

void Core::Forward(const StepPlan& plan) {
  AllocateAhead(plan);
  const MatrixView logits = MatrixView::Of(logits_->device<float>(),
                                           static_cast<int64_t>(plan.logit_rows.size()), vocab_);
  backend_.decoder->Forward(*backend_.stream, plan.step, plan.tokens, plan.positions,
                            *backend_.cache, plan.logit_rows, logits);
  if (device_sampler_ != nullptr) {
    IssueSampling(plan);
  } else {
    logits_->Receive(*backend_.stream, static_cast<size_t>(logits.rows * vocab_) * sizeof(float));
  }
  if (sends_beside_steps_) Send();
  backend_.stream->Synchronize();
  ++counters_.steps;
}

void Core::Finish(const StepPlan& plan) {
  sampled_.clear();
  for (size_t i = 0; i < plan.decodes.size(); ++i) {
    const StepPlan::Decode& row = plan.decodes[i];
    sampled_.push_back({row.group, row.sample, row.logit_row});
    if (device_sampler_ != nullptr && chosen_decodes_[i] >= 0) {
      sampled_.back().chosen = device_sampler_->token(chosen_decodes_[i]);
    }
  }
  FollowPrompts(plan);
  for (size_t p = 0; p < plan.prefills.size(); ++p) {
    const StepPlan::Prefill& part = plan.prefills[p];
    try {
      FinishPrefill(part);
      if (part.group->ended || part.group->prefilling()) continue;
      StartSamples(part.group);
      for (size_t i = 0; i < part.group->samples.size(); ++i) {
        sampled_.push_back({part.group, i, part.logit_row + part.logit_rows - 1});
        if (device_sampler_ != nullptr && chosen_prompts_[p] >= 0) {
          sampled_.back().chosen =
              device_sampler_->token(chosen_prompts_[p] + static_cast<int64_t>(i));
        }
      }
    } catch (...) {  // from a callback, or from a score's logits
      const std::string message = MessageOf(std::current_exception());
      End(part.group, FinishReason::kError, message);
    }
  }
  SampleRows();
  for (Sampled& row : sampled_) Deliver(&row);
  if (options_.draft_tokens > 0) FinishDrafts(plan);
}

void Core::FinishPrefill(const StepPlan::Prefill& part) {
  Group* group = part.group;
  group->prefilled += part.count;
  counters_.prompt_tokens += part.count;
  if (group->score != nullptr) {
    group->score->Add(part.begin, part.count, LogitRow(part.logit_row).data(), backend_.pool);
    if (!group->prefilling()) End(group, FinishReason::kLength);
    return;
  }
  if (prefixes_ != nullptr) KeepPrefix([&] { prefixes_->KeepPrompt(group); });
  const Request& request = group->request;
  if (request.prompt_logprobs >= 0) {
    Chunk chunk;
    chunk.prompt_logprobs =
        LogprobsOfGiven(request.prompt, part.begin, part.count, LogitRow(part.logit_row).data(),
                        vocab_, request.prompt_logprobs, backend_.pool);
    if (!chunk.prompt_logprobs.empty()) outbox_.emplace_back(group->channel, std::move(chunk));
  }
  if (request.on_prefill) request.on_prefill(group->prefilled, group->prompt_size());
  if (!request.generate && !group->prefilling()) End(group, FinishReason::kLength);
}

void Core::StartSamples(Group* group) {
  const Request& request = group->request;
  MakeSamplers(group);
  group->samples.reserve(static_cast<size_t>(request.n));
  for (int i = 0; i < request.n; ++i) {
    const kv::SequenceId sequence =
        i == 0 ? group->prompt_sequence : backend_.cache->Fork(group->samples[0].sequence);
    group->samples.push_back({i,
                              sequence,
                              true,
                              0,
                              0,
                              std::move(group->samplers[static_cast<size_t>(i)]),
                              StopMatcher(request.stop, request.include_stop),
                              nullptr,
                              nullptr,
                              true,
                              {}});
    if (group->constraint != nullptr) {
      group->samples.back().constraint = group->constraint->Clone();
    }
    if (backend_.token_text) {
      group->samples.back().text = backend_.token_text(request);
    }
    if (options_.draft_tokens > 0) {
      group->samples.back().drafts = StartDrafts(group);
    }
  }
  group->constraint.reset();
}

void Core::Deliver(Sampled* row) {
  Group* group = row->group;
  if (group->ended) return;  // a sibling sample's error has ended the request
  if (!row->error.empty()) {
    End(group, FinishReason::kError, row->error);
    return;
  }
  Sample& sample = group->samples[row->sample];
  sample.last_token = row->token;
  ++sample.generated;
  const Request& request = group->request;
  if (prefixes_ != nullptr || sample.drafts != nullptr || !request.bad_words.empty()) {
    sample.tokens.push_back(row->token);
  }
  if (sample.drafts != nullptr) sample.drafts->lookup.Add(row->token);
  ++counters_.generated_tokens;

  Chunk chunk;
  chunk.sample = sample.index;
  chunk.tokens.push_back(row->token);
  chunk.logprob = row->logprob;
  chunk.top_logprobs = std::move(row->top_logprobs);
  bool stopped = std::binary_search(group->stop_ids.begin(), group->stop_ids.end(), row->token);
  if (sample.text != nullptr) {
    // A token that ends the answer is not part of its text, unless that was asked for.
    const std::string text =
        stopped && !request.include_stop ? std::string() : sample.text->Add(row->token);
    if (sample.generated <= request.min_tokens) {
      chunk.text += text;  // too early for stop strings
    } else {
      stopped = sample.stops.Add(text, &chunk.text) || stopped;
    }
  }
  stopped = stopped || row->complete;
  if (stopped) {
    chunk.finish = FinishReason::kStop;
  } else if (sample.generated >= group->max_tokens) {
    chunk.finish = FinishReason::kLength;
  }
  if (chunk.finish != FinishReason::kNone && sample.text != nullptr) {
    // The end of the text may also complete a stop string.
    if (sample.stops.Add(sample.text->Flush(), &chunk.text)) chunk.finish = FinishReason::kStop;
    sample.stops.Flush(&chunk.text);
    chunk.stop = sample.stops.matched();
  }

  const Clock::time_point now = Clock::now();
  if (!group->first_token) group->first_token = now;
  group->channel->UpdateStats([&](RequestStats& stats) {
    stats.prefill_seconds = SecondsBetween(*group->started, *group->first_token);
    stats.decode_seconds = SecondsBetween(*group->first_token, now);
  });
  if (chunk.finish != FinishReason::kNone) EndSample(group, &sample);
  outbox_.emplace_back(group->channel, std::move(chunk));
}

void Core::Send() {
  for (auto& [channel, chunk] : outbox_) channel->Push(std::move(chunk));
  outbox_.clear();
  for (auto& [job, error] : scored_) job->Finish(std::move(error));
  scored_.clear();
}

void Core::UpdateStats() {
  counters_.running = 0;
  for (const auto& group : scheduler_.running()) counters_.running += group->width();
  counters_.waiting = static_cast<int64_t>(scheduler_.waiting().size());
  counters_.kv = backend_.cache->GetStats();
  if (prefixes_ != nullptr) counters_.prefix = prefixes_->Stats(scheduler_.running().empty());
  const std::span<const kv::HeadCounters> heads = backend_.cache->Heads();
  counters_.kv_heads.assign(heads.begin(), heads.end());
  std::lock_guard lock(mutex_);
  stats_ = counters_;
  stats_.waiting += static_cast<int64_t>(incoming_.size());
}

}  // namespace litecache::engine
