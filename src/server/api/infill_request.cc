// /infill, as in llama.cpp's server: the text between "input_prefix" and "input_suffix".
#include <utility>

#include "server/api/answer.h"
#include "server/api/infill.h"
#include "server/api/response_format.h"

namespace litecache::server {
namespace {

// One answer, in the form of that server.
class InfillFormat final : public AnswerFormat {
 public:
  InfillFormat(const ServedModel& model, const GenerationJob& job)
      : model_(model), stops_(job.requests.front().stop) {}

  void Begin(std::string*) override {}

  void Delta(int, const Chunk& chunk, std::string* out) override {
    text_ += chunk.text;
    if (!chunk.text.empty()) {
      AppendEvent({{"index", 0}, {"content", chunk.text}, {"stop", false}}, out);
    }
    if (chunk.finish == FinishReason::kLength) type_ = "limit";
    if (chunk.stop < 0) return;
    type_ = "word";
    word_ = stops_[static_cast<size_t>(chunk.stop)];
  }

  void OnProgress(const Progress& progress, std::string* out) override {
    AppendEvent({{"index", 0},
                 {"content", ""},
                 {"stop", false},
                 {"prompt_progress", ProgressJson(progress)}},
                out);
  }

  void End(const Usage& usage, std::string* out) override { AppendEvent(Last("", usage), out); }

  void Failed(const ApiError& error, std::string* out) override {
    *out += "data: " + error.Body() + "\n\n";
  }

  Json Whole(const Usage& usage) override { return Last(std::move(text_), usage); }

 private:
  Json Last(std::string content, const Usage& usage) const {
    return {{"index", 0},
            {"content", std::move(content)},
            {"stop", true},
            {"stop_type", type_},
            {"stopping_word", word_},
            {"model", model_.name()},
            {"tokens_predicted", usage.generated_tokens},
            {"tokens_evaluated", usage.prompt_tokens},
            {"tokens_cached", usage.cached_tokens},
            {"truncated", false},
            {"timings", TimingsJson(usage)}};
  }

  const ServedModel& model_;
  const std::vector<std::string> stops_;
  std::string text_;
  const char* type_ = "eos";
  std::string word_;
};

// Reads input_extra, a list of {"filename", "text"}.
std::vector<InfillTexts::File> ReadFiles(Fields& fields) {
  std::vector<InfillTexts::File> files;
  const Json* list = fields.Array("input_extra");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    Fields file((*list)[i], fmt::format("input_extra[{}].", i));
    const auto text = [&](const char* name) -> std::string_view {
      const Json* value = file.Find(name);
      if (value == nullptr) return {};
      if (!value->is_string()) file.Fail(name, "a string is expected");
      return value->get_ref<const std::string&>();
    };
    files.push_back({text("filename"), text("text")});
    file.Ignore({"time"});
    file.Finish();
  }
  return files;
}

// Editors send these with every request. They make an answer shorter, or choose what is reported.
void IgnoreEditorFields(Json* body) {
  for (const char* name : {"samplers", "n_indent", "t_max_prompt_ms", "t_max_predict_ms",
                           "response_fields", "cache_prompt", "id_slot"}) {
    if (body->erase(name) > 0)
      IgnoreField(name, "answers end at n_predict tokens, a stop string or the model's end token");
  }
}

}  // namespace

GenerationJob ReadInfill(const Json& body, const ServedModel& model) {
  Json rest = body, length = Json::object();
  IgnoreEditorFields(&rest);
  if (rest.contains("n_predict")) length["n_predict"] = rest["n_predict"];
  rest.erase("n_predict");

  Fields fields(rest), length_fields(length);
  ReadModelField(fields, model);
  fields.RefuseUnless("n", {1}, "/infill returns exactly one answer");
  GenerationJob job;
  Request request = ReadGenerationFields(fields, model);
  job.stream = ReadStreamFields(fields);
  const auto max_tokens = ReadMaxTokens(length_fields, "n_predict", model);
  ReadResponseFormat(fields, model, &request);
  const auto before = fields.String("input_prefix"), after = fields.String("input_suffix");
  if (!before && !after) {
    throw BadRequest("input_prefix",
                     "'input_prefix' and 'input_suffix' are missing: send a text "
                     "as at least one of them");
  }
  const std::string begun = fields.String("prompt").value_or("");
  const std::string first = before.value_or(""), last = after.value_or("");
  const InfillTexts texts{ReadFiles(fields), first, last, begun};
  fields.Finish();
  SetInfillPrompt(texts, "input_prefix", model, &request);
  CheckPromptSize(request.prompt.size(), model);
  job.requests.push_back(std::move(request));
  job.format = std::make_unique<InfillFormat>(model, job);
  SetMaxTokens(max_tokens, model.limits.default_max_tokens, model, &job);
  return job;
}

}  // namespace litecache::server
