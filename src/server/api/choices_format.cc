#include "server/api/choices_format.h"

#include <algorithm>
#include <utility>

#include "server/api/logprobs.h"

namespace litecache::server {
namespace {

Json ChoiceJson(size_t index, const char* name, Json content, Json logprobs, Json finish) {
  return {{"index", index},
          {name, std::move(content)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

}  // namespace

ChoicesFormat::ChoicesFormat(const ServedModel& model, const GenerationJob& job, const Names& names)
    : model_(model),
      stream_(job.stream),
      samples_(static_cast<size_t>(job.requests.front().n)),
      prompts_(job.requests.size()),
      ids_(prompts_.size() * samples_, Json::array()),
      begun_(ids_.size()),
      names_(names),
      id_(NewId(names.id)) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (stream_.token_ids) prompts_[i].ids = job.requests[i].prompt;
    prompts_[i].logprobs.push_back(nullptr);  // nothing comes before the first token
  }
}

Json ChoicesFormat::Object(const char* object, Json choices) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name()},
          {"choices", std::move(choices)}};
}

Json ChoicesFormat::FullUsage(Usage usage) const {
  usage.reasoning_tokens = ReasoningTokens();
  return UsageJson(usage);
}

void ChoicesFormat::Note(size_t index, const Chunk& chunk) {
  if (stream_.token_ids) {
    for (const int32_t id : chunk.tokens) ids_[index].push_back(id);
  }
  if (stream_.prompt_logprobs < 0) return;
  for (const PromptLogprob& given : chunk.prompt_logprobs) {
    prompts_[index / samples_].logprobs.push_back(
        PromptLogprobJson(model_.tokenizer(), given, stream_.prompt_logprobs));
  }
}

void ChoicesFormat::ReportPrompt(const Prompt& prompt, Json* object) const {
  if (stream_.token_ids) (*object)["prompt_token_ids"] = prompt.ids;
  if (stream_.prompt_logprobs >= 0) (*object)["prompt_logprobs"] = prompt.logprobs;
}

void ChoicesFormat::Report(size_t index, Json* choice) {
  if (stream_.token_ids) (*choice)["token_ids"] = std::exchange(ids_[index], Json::array());
  if (names_.prompt_in_choice && !begun_[index]) {
    ReportPrompt(prompts_[index / samples_], choice);
  }
  begun_[index] = true;
}

void ChoicesFormat::Append(size_t index, Json delta, Json logprobs, Json finish, std::string* out) {
  const bool first = std::find(begun_.begin(), begun_.end(), true) == begun_.end();
  Json choice =
      ChoiceJson(index, names_.delta, std::move(delta), std::move(logprobs), std::move(finish));
  Report(index, &choice);
  Json event = Object(names_.event, Json::array({std::move(choice)}));
  if (first && !names_.prompt_in_choice) ReportPrompt(prompts_.front(), &event);
  if (stream_.include_usage) event["usage"] = nullptr;
  AppendEvent(event, out);
}

void ChoicesFormat::OnProgress(const Progress& progress, std::string* out) {
  Json event = Object(names_.event, Json::array());
  event["prompt_progress"] = ProgressJson(progress);
  AppendEvent(event, out);
}

void ChoicesFormat::End(const Usage& usage, std::string* out) {
  if (stream_.include_usage || stream_.timings) {
    Json event = Object(names_.event, Json::array());
    if (stream_.include_usage) event["usage"] = FullUsage(usage);
    if (stream_.timings) event["timings"] = TimingsJson(usage);
    AppendEvent(event, out);
  }
  *out += "data: [DONE]\n\n";
}

void ChoicesFormat::Failed(const ApiError& error, std::string* out) {
  *out += "data: " + error.Body() + "\n\n";
}

Json ChoicesFormat::Choice(size_t index, Json content, Json logprobs, const char* finish) {
  Json choice = ChoiceJson(index, names_.content, std::move(content), std::move(logprobs), finish);
  Report(index, &choice);
  return choice;
}

Json ChoicesFormat::Answer(Json choices, const Usage& usage) {
  Json result = Object(names_.object, std::move(choices));
  if (!names_.prompt_in_choice) ReportPrompt(prompts_.front(), &result);
  result["usage"] = FullUsage(usage);
  if (stream_.timings) result["timings"] = TimingsJson(usage);
  return result;
}

}  // namespace litecache::server
