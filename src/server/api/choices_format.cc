#include "server/api/choices_format.h"

#include <utility>

namespace litecache::server {
namespace {

Json ChoiceJson(size_t index, const char* name, Json content, Json logprobs, Json finish) {
  return {{"index", index},
          {name, std::move(content)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

}  // namespace

Json ChoicesFormat::Object(const char* object, Json choices) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.name()},
          {"choices", std::move(choices)}};
}

void ChoicesFormat::Append(size_t index, Json delta, Json logprobs, Json finish,
                           std::string* out) const {
  Json event =
      Object(names_.event, Json::array({ChoiceJson(index, names_.delta, std::move(delta),
                                                   std::move(logprobs), std::move(finish))}));
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
    if (stream_.include_usage) event["usage"] = UsageJson(usage);
    if (stream_.timings) event["timings"] = TimingsJson(usage);
    AppendEvent(event, out);
  }
  *out += "data: [DONE]\n\n";
}

void ChoicesFormat::Failed(const ApiError& error, std::string* out) {
  *out += "data: " + error.Body() + "\n\n";
}

Json ChoicesFormat::Choice(size_t index, Json content, Json logprobs, const char* finish) const {
  return ChoiceJson(index, names_.content, std::move(content), std::move(logprobs), finish);
}

Json ChoicesFormat::Answer(Json choices, const Usage& usage) const {
  Json result = Object(names_.object, std::move(choices));
  result["usage"] = UsageJson(usage);
  if (stream_.timings) result["timings"] = TimingsJson(usage);
  return result;
}

}  // namespace litecache::server
