// /v1/completions
#include <algorithm>
#include <utility>

#include "server/api/choices_format.h"
#include "server/api/infill.h"
#include "server/api/logprobs.h"
#include "server/api/response_format.h"

namespace litecache::server {
namespace {

// The default documented by the API.
constexpr int64_t kDefaultMaxTokens = 16;

class CompletionFormat final : public ChoicesFormat {
 public:
  // `echoes`: the text before each choice's own text, by prompt; empty if none is echoed.
  CompletionFormat(const ServedModel& model, const GenerationJob& job,
                   std::vector<std::string> echoes)
      : ChoicesFormat(model, job,
                      {.id = "cmpl-",
                       .object = "text_completion",
                       .event = "text_completion",
                       .content = "text",
                       .delta = "text",
                       .prompt_in_choice = true}),
        logprobs_(job.requests.front().logprobs),
        echo_(!echoes.empty()) {
    for (size_t i = 0; i < job.requests.size() * samples(); ++i) {
      const Request& request = job.requests[i / samples()];
      choices_.push_back({"", {model.tokenizer(), request.skip_special_tokens}});
      if (!echo_) continue;
      choices_.back().text = echoes[i / samples()];
      if (logprobs_ >= 0) choices_.back().logprobs.AddFirst(request.prompt.front());
    }
  }

  void Begin(std::string* out) override {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].text.empty()) Append(i, choices_[i].text, nullptr, nullptr, out);
    }
  }

  void Delta(int index, const Chunk& chunk, std::string* out) override {
    const auto at = static_cast<size_t>(index);
    Note(at, chunk);
    if (echo_ && logprobs_ >= 0 && !chunk.prompt_logprobs.empty()) {
      for (size_t i = at; i < at + samples(); ++i) TakePrompt(i, chunk, out);
    }
    Said& choice = choices_[at];
    if (chunk.logprob) choice.logprobs.Add(*chunk.logprob, chunk.top_logprobs, logprobs_);
    const bool last = chunk.finish != FinishReason::kNone;
    if (last) choice.finish = chunk.finish;
    if (!streams()) {
      choice.text += chunk.text;
      return;
    }
    if (chunk.text.empty() && !last && choice.logprobs.empty()) return;
    Json logprobs;
    if (!choice.logprobs.empty()) logprobs = choice.logprobs.Take();
    Append(at, chunk.text, std::move(logprobs), last ? Json(FinishName(chunk.finish)) : Json(),
           out);
  }

  Json Whole(const Usage& usage) override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Said& choice = choices_[i];
      choices.push_back(Choice(i, std::move(choice.text),
                               logprobs_ >= 0 ? choice.logprobs.Take() : Json(),
                               FinishName(choice.finish)));
    }
    return Answer(std::move(choices), usage);
  }

 private:
  struct Said {
    std::string text;
    CompletionLogprobs logprobs;
    FinishReason finish = FinishReason::kNone;
  };

  // The log-probabilities of an echo's tokens. In a stream its text came before.
  void TakePrompt(size_t index, const Chunk& chunk, std::string* out) {
    CompletionLogprobs& logprobs = choices_[index].logprobs;
    for (const PromptLogprob& given : chunk.prompt_logprobs) {
      logprobs.Add(given.token, given.top, logprobs_);
    }
    if (streams()) Append(index, "", logprobs.Take(), nullptr, out);
  }

  const int logprobs_;  // -1: none
  const bool echo_;
  std::vector<Said> choices_;
};

// A prompt is a text, a list of texts, a list of ids, or a list of lists of ids.
std::vector<std::vector<int32_t>> ReadPrompts(Fields& fields, const ServedModel& model,
                                              bool add_special_tokens) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) throw BadRequest("prompt", "'prompt' is missing");
  const auto encode = [&](const Json& text) {
    const auto& prompt_text = text.get_ref<const std::string&>();
    // Control tokens in a raw prompt are intentional.
    return EncodePrompt(prompt_text.size(), model, [&](size_t most) {
      return model.tokenizer().Encode(
          prompt_text, {.add_special_tokens = add_special_tokens, .max_tokens = most});
    });
  };
  const auto bad = [&] {
    fields.Fail("prompt",
                "a text, an array of texts, of token ids, or of arrays of token ids is "
                "expected");
  };
  const auto read_ids = [](const Json& ids) {
    const Json wrapped = {{"prompt", ids}};
    return *Fields(wrapped).Ids("prompt");
  };
  if (prompt->is_string()) return {encode(*prompt)};
  if (!prompt->is_array() || prompt->empty()) bad();
  if (prompt->front().is_number()) return {read_ids(*prompt)};
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : *prompt) {
    if (one.is_string()) {
      prompts.push_back(encode(one));
    } else if (one.is_array()) {
      prompts.push_back(read_ids(one));
    } else {
      bad();
    }
  }
  return prompts;
}

}  // namespace

GenerationJob ReadCompletion(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ReadModelField(fields, model);
  GenerationJob job;
  Request request = ReadGenerationFields(fields, model);
  request.logprobs = static_cast<int>(fields.Int("logprobs", 0, 20).value_or(-1));
  job.stream = ReadStreamFields(fields);
  ReadReportFields(fields, &job.stream, &request);
  const auto max_tokens = ReadMaxTokens(fields, "max_tokens", model, 0);
  const int64_t most_tokens = ReadTruncation(fields, model, max_tokens);
  const bool echo = fields.Bool("echo").value_or(false);
  if (echo) request.prompt_logprobs = std::max(request.prompt_logprobs, request.logprobs);
  fields.RefuseUnless("best_of", {1, request.n},
                      "it must be equal to 'n': all answers that are generated are returned");
  ReadResponseFormat(fields, model, &request);
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  const std::string suffix = fields.String("suffix").value_or("");
  std::vector<std::vector<int32_t>> prompts;
  if (suffix.empty()) {
    prompts = ReadPrompts(fields, model, add_special_tokens);
  } else {
    if (echo || most_tokens > 0 || !add_special_tokens) {
      fields.Fail("suffix",
                  "it cannot be combined with 'echo', 'truncate_prompt_tokens' or "
                  "'add_special_tokens': false");
    }
    const auto before = fields.String("prompt").value_or("");
    SetInfillPrompt({.files = {}, .before = before, .after = suffix, .begun = {}}, "suffix", model,
                    &request);
    prompts.push_back(std::move(request.prompt));
  }
  fields.Finish();
  const auto choices = static_cast<int64_t>(prompts.size()) * request.n;
  if (choices > model.limits.max_samples) {
    throw BadRequest(
        "prompt",
        "{} prompts with {} answers each exceed this server's limit of {} answers per request",
        prompts.size(), request.n, model.limits.max_samples);
  }
  std::vector<std::string> echoes;
  for (auto& prompt : prompts) {
    Truncate(most_tokens, &prompt);
    CheckPromptSize(prompt.size(), model);
    if (prompt.empty()) fields.Fail("prompt", "it is empty: send at least one token");
    if (echo) echoes.push_back(model.tokenizer().Decode(prompt, request.skip_special_tokens));
    job.requests.push_back(request);
    job.requests.back().prompt = std::move(prompt);
  }
  job.format = std::make_unique<CompletionFormat>(model, job, std::move(echoes));
  SetMaxTokens(max_tokens, kDefaultMaxTokens, model, &job);
  return job;
}

}  // namespace litecache::server
