// /v1/completions
#include <utility>

#include "server/api/choices_format.h"
#include "server/api/logprobs.h"
#include "server/api/response_format.h"

namespace litecache::server {
namespace {

// The default documented by the API.
constexpr int64_t kDefaultMaxTokens = 16;

class CompletionFormat final : public ChoicesFormat {
 public:
  // `echoes`: the text before each choice's own text; usually "".
  CompletionFormat(const ServedModel& model, const StreamOptions& stream, bool logprobs,
                   std::vector<std::string> echoes)
      : ChoicesFormat(model, stream,
                      {.id = "cmpl-",
                       .object = "text_completion",
                       .event = "text_completion",
                       .content = "text",
                       .delta = "text"}),
        logprobs_(logprobs) {
    for (auto& echo : echoes) choices_.emplace_back(std::move(echo), model.tokenizer());
  }

  void Begin(std::string* out) override {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].text.empty()) Append(i, choices_[i].text, nullptr, nullptr, out);
    }
  }

  void Delta(int index, const Chunk& chunk, std::string* out) override {
    Said& choice = choices_[static_cast<size_t>(index)];
    if (logprobs_) choice.logprobs.Add(chunk);
    const bool last = chunk.finish != FinishReason::kNone;
    if (last) choice.finish = chunk.finish;
    if (!streams()) {
      choice.text += chunk.text;
      return;
    }
    if (chunk.text.empty() && !last && choice.logprobs.empty()) return;
    Json logprobs;
    if (!choice.logprobs.empty()) logprobs = choice.logprobs.Take();
    Append(static_cast<size_t>(index), chunk.text, std::move(logprobs),
           last ? Json(FinishName(chunk.finish)) : Json(), out);
  }

  Json Whole(const Usage& usage) override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Said& choice = choices_[i];
      choices.push_back(Choice(i, std::move(choice.text),
                               logprobs_ ? choice.logprobs.Take() : Json(),
                               FinishName(choice.finish)));
    }
    return Answer(std::move(choices), usage);
  }

 private:
  struct Said {
    Said(std::string echo, const tokenizer::Tokenizer& tokenizer)
        : text(std::move(echo)), logprobs(tokenizer) {}
    std::string text;
    CompletionLogprobs logprobs;
    FinishReason finish = FinishReason::kNone;
  };

  const bool logprobs_;
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
    return model.tokenizer().Encode(prompt_text,
                                    {.add_special_tokens = add_special_tokens,
                                     .max_tokens = MostPromptTokens(prompt_text.size(), model)});
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
  const auto max_tokens = ReadMaxTokens(fields, "max_tokens", model);
  const bool echo = fields.Bool("echo").value_or(false);
  if (echo && request.logprobs >= 0) {
    fields.Fail("echo", "log-probabilities of the prompt are not supported");
  }
  fields.RefuseUnless("best_of", {1, request.n}, "more candidates than 'n' are not supported");
  fields.RefuseUnless("suffix", {""});
  ReadResponseFormat(fields, model, &request);
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  auto prompts = ReadPrompts(fields, model, add_special_tokens);
  fields.Finish();
  const auto choices = static_cast<int64_t>(prompts.size()) * request.n;
  if (choices > model.limits.max_samples) {
    throw BadRequest("prompt", "{} prompts with {} answers each are more than {} answers",
                     prompts.size(), request.n, model.limits.max_samples);
  }
  std::vector<std::string> echoes;
  for (auto& prompt : prompts) {
    CheckPromptSize(prompt.size(), model);
    const std::string text =
        echo ? model.tokenizer().Decode(prompt, request.skip_special_tokens) : "";
    echoes.insert(echoes.end(), static_cast<size_t>(request.n), text);
    job.requests.push_back(request);
    job.requests.back().prompt = std::move(prompt);
  }
  job.format = std::make_unique<CompletionFormat>(model, job.stream, request.logprobs >= 0,
                                                  std::move(echoes));
  SetMaxTokens(max_tokens, kDefaultMaxTokens, model, &job);
  return job;
}

}  // namespace litecache::server
