// /v1/responses: text in, text out. Answers are not kept: "store" and "previous_response_id" are
// refused, and what is reported says so.
#include <ctime>
#include <utility>

#include "server/api/answer.h"
#include "server/api/chat_prompt.h"
#include "server/api/messages.h"

namespace litecache::server {
namespace {

// Events of a stream are named and numbered.
class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const ServedModel& model, const StreamOptions& stream, Json echo)
      : model_(model), stream_(stream), echo_(std::move(echo)) {}

  void Begin(std::string* out) override {
    Emit("response.created", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    Emit("response.in_progress", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    Json item = Item("in_progress");
    item["content"] = Json::array();
    Emit("response.output_item.added", {{"output_index", 0}, {"item", std::move(item)}}, out);
    Emit("response.content_part.added", Place({{"part", Part("")}}), out);
  }

  void Delta(int, const Chunk& chunk, std::string* out) override {
    text_ += chunk.text;
    if (chunk.finish != FinishReason::kNone) finish_ = chunk.finish;
    if (!stream_.stream || chunk.text.empty()) return;
    Emit("response.output_text.delta", Place({{"delta", chunk.text}, {"logprobs", Json::array()}}),
         out);
  }

  void OnProgress(const Progress& progress, std::string* out) override {
    Emit("response.prompt_progress", {{"prompt_progress", ProgressJson(progress)}}, out);
  }

  void End(const Usage& usage, std::string* out) override {
    const Json result = Whole(usage);
    Emit("response.output_text.done", Place({{"text", text_}, {"logprobs", Json::array()}}), out);
    Emit("response.content_part.done", Place({{"part", Part(text_)}}), out);
    Emit("response.output_item.done",
         {{"output_index", 0}, {"item", Item(complete() ? "completed" : "incomplete")}}, out);
    Emit(complete() ? "response.completed" : "response.incomplete", {{"response", result}}, out);
  }

  void Failed(const ApiError& error, std::string* out) override {
    Json response = State("failed", Json::array(), nullptr);
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    Emit("response.failed", {{"response", std::move(response)}}, out);
  }

  Json Whole(const Usage& usage) override {
    Json output = Json::array({Item(complete() ? "completed" : "incomplete")});
    return State(complete() ? "completed" : "incomplete", std::move(output),
                 {{"input_tokens", usage.prompt_tokens},
                  {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                  {"output_tokens", usage.generated_tokens},
                  {"output_tokens_details", {{"reasoning_tokens", 0}}},
                  {"total_tokens", usage.prompt_tokens + usage.generated_tokens}});
  }

 private:
  bool complete() const { return finish_ != FinishReason::kLength; }

  static Json Part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  Json Item(const char* status) const {
    return {{"id", item_id_},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", Json::array({Part(text_)})}};
  }

  Json Place(Json fields) const {
    Json event = {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}};
    event.update(fields);
    return event;
  }

  // The response object.
  Json State(const char* status, Json output, Json usage) const {
    Json result = {{"id", id_},
                   {"object", "response"},
                   {"created_at", created_},
                   {"status", status},
                   {"background", false},
                   {"error", nullptr},
                   {"incomplete_details", nullptr},
                   {"model", model_.name()},
                   {"output", std::move(output)},
                   {"parallel_tool_calls", false},
                   {"previous_response_id", nullptr},
                   {"store", false},
                   {"text", {{"format", {{"type", "text"}}}}},
                   {"tool_choice", "none"},
                   {"tools", Json::array()},
                   {"usage", std::move(usage)}};
    if (std::string_view(status) == "incomplete") {
      result["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    result.update(echo_);
    return result;
  }

  void Emit(const char* type, Json fields, std::string* out) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    *out += fmt::format("event: {}\n", type);
    AppendEvent(event, out);
  }

  const ServedModel& model_;
  const StreamOptions stream_;
  const Json echo_;  // fields of the request that the response repeats
  const std::string id_ = NewId("resp_");
  const std::string item_id_ = NewId("msg_");
  const std::time_t created_ = std::time(nullptr);
  int64_t sequence_ = 0;
  std::string text_;
  FinishReason finish_ = FinishReason::kNone;
};

// `input`: a text, or a list of messages, to those of a chat.
Json ReadInput(Fields& fields, std::optional<std::string> instructions) {
  Json messages = Json::array();
  if (instructions) messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json* input = fields.Find("input");
  if (input == nullptr) throw BadRequest("input", "'input' is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array() || input->empty()) {
    fields.Fail("input", "a text or an array of messages is expected");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    Fields item((*input)[i], fmt::format("input[{}].", i));
    item.RefuseUnless("type", {"message"}, "this server takes messages only");
    const auto role = item.String("role");
    if (!role) item.Fail("role", "it is missing");
    if (*role == "tool") item.Fail("role", "system, developer, user or assistant is expected");
    const Json* content = item.Find("content");
    if (content == nullptr) item.Fail("content", "it is missing");
    item.Ignore({"id", "status"});
    item.Finish();
    messages.push_back({{"role", *role}, {"content", ReadContent(*content, item.Path("content"))}});
  }
  return messages;
}

void RefuseUnsupported(Fields& fields) {
  fields.RefuseUnless("store", {false}, "answers are not kept");
  fields.Refuse("previous_response_id", "answers are not kept: send the whole conversation");
  fields.RefuseUnless("background", {false}, "answers are not kept");
  fields.RefuseUnless("truncation", {"disabled"});
  fields.RefuseUnless("include", {Json::array()});
  fields.RefuseUnless("tools", {Json::array()});
  fields.RefuseUnless("tool_choice", {"none", "auto"});
  fields.Ignore({"parallel_tool_calls"});
  fields.RefuseUnless("top_logprobs", {0});
  for (const char* name : {"conversation", "prompt", "max_tool_calls"}) fields.Refuse(name);
  if (const Json* text = fields.Object("text")) {
    Fields inner(*text, "text.");
    inner.RefuseUnless("format", {{{"type", "text"}}});
    inner.Refuse("verbosity");
    inner.Finish();
  }
}

}  // namespace

GenerationJob ReadResponses(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ReadModelField(fields, model);
  fields.RefuseUnless("n", {1}, "a response is one answer");
  GenerationJob job;
  Request request = ReadGenerationFields(fields, model);
  job.stream = ReadStreamFields(fields);
  const auto max_tokens = ReadMaxTokens(fields, "max_output_tokens", model);
  RefuseUnsupported(fields);
  const auto instructions = fields.String("instructions");
  // The rest of a conversation's fields are those of a chat.
  Json chat = {{"messages", ReadInput(fields, instructions)}};
  if (const Json* reasoning = fields.Object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    if (const Json* effort = inner.Find("effort")) chat["reasoning_effort"] = *effort;
    inner.Refuse("summary");
    inner.Refuse("generate_summary");
    inner.Finish();
  }
  if (const Json* variables = fields.Find("chat_template_kwargs")) {
    chat["chat_template_kwargs"] = *variables;
  }
  fields.Finish();
  Fields chat_fields(chat);
  request.prompt = EncodeChatPrompt(ReadChatPrompt(chat_fields, model), model);

  Json echo = {{"instructions", instructions ? Json(*instructions) : Json()},
               {"max_output_tokens", max_tokens ? Json(*max_tokens) : Json()},
               {"temperature", request.sampling.temperature},
               {"top_p", request.sampling.top_p},
               {"metadata", body.value("metadata", Json::object())}};
  job.format = std::make_unique<ResponsesFormat>(model, job.stream, std::move(echo));
  job.requests.push_back(std::move(request));
  SetMaxTokens(max_tokens, model.limits.default_max_tokens, model, &job);
  return job;
}

}  // namespace litecache::server
