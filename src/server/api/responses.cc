// /v1/responses: text in, text out. Answers are not stored: "store" and "previous_response_id" are
// rejected, and the response reports "store": false.
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "server/api/answer.h"
#include "server/api/chat_prompt.h"
#include "server/api/messages.h"
#include "server/api/response_format.h"
#include "server/api/tools.h"

namespace litecache::server {
namespace {

// Events of a stream are named and numbered. The output is a list of items: messages and function
// calls.
class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(const ServedModel& model, const StreamOptions& stream, Json echo,
                  const ToolUse& tools)
      : model_(model), stream_(stream), echo_(std::move(echo)) {
    if (tools.active()) parser_.emplace(tools.Parser());
  }

  void Begin(std::string* out) override {
    Emit("response.created", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    Emit("response.in_progress", {{"response", State("in_progress", Json::array(), nullptr)}}, out);
    // With tools, the answer may consist of a call alone.
    if (!parser_) Open(false, "", out);
  }

  void Delta(int, const Chunk& chunk, std::string* out) override {
    const bool last = chunk.finish != FinishReason::kNone;
    if (last) finish_ = chunk.finish;
    std::vector<ToolEvent> events;
    if (parser_) {
      parser_->Add(chunk.text, &events);
      if (last) parser_->Finish(&events);
    } else if (!chunk.text.empty()) {
      events.push_back({ToolEvent::kText, chunk.text});
    }
    for (const ToolEvent& event : events) Take(event, out);
  }

  void OnProgress(const Progress& progress, std::string* out) override {
    Emit("response.prompt_progress", {{"prompt_progress", ProgressJson(progress)}}, out);
  }

  void End(const Usage& usage, std::string* out) override {
    if (items_.empty()) Open(false, "", out);
    Close(out);
    const Json result = Whole(usage);
    Emit(complete() ? "response.completed" : "response.incomplete", {{"response", result}}, out);
  }

  void Failed(const ApiError& error, std::string* out) override {
    Json response = State("failed", Json::array(), nullptr);
    response["error"] = {{"code", "server_error"}, {"message", error.what()}};
    Emit("response.failed", {{"response", std::move(response)}}, out);
  }

  Json Whole(const Usage& usage) override {
    if (items_.empty()) items_.push_back({false, NewId("msg_"), "", "", ""});
    Json output = Json::array();
    for (const Item& item : items_) {
      output.push_back(
          ItemJson(item, &item != &items_.back() || complete() ? "completed" : "incomplete"));
    }
    return State(complete() ? "completed" : "incomplete", std::move(output),
                 {{"input_tokens", usage.prompt_tokens},
                  {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                  {"output_tokens", usage.generated_tokens},
                  {"output_tokens_details", {{"reasoning_tokens", 0}}},
                  {"total_tokens", usage.prompt_tokens + usage.generated_tokens}});
  }

 private:
  struct Item {
    bool call = false;
    std::string id;
    std::string call_id;
    std::string name;
    std::string text;  // text of the message, or arguments of the call
  };

  bool complete() const { return finish_ != FinishReason::kLength; }

  void Take(const ToolEvent& event, std::string* out) {
    if (event.kind == ToolEvent::kBegin) {
      Close(out);
      return Open(true, event.text, out);
    }
    if (event.kind == ToolEvent::kText && (items_.empty() || items_.back().call)) {
      Close(out);
      Open(false, "", out);
    }
    Item& item = items_.back();
    item.text += event.text;
    if (!stream_.stream) return;
    if (item.call) {
      Emit("response.function_call_arguments.delta", Place({{"delta", event.text}}), out);
    } else {
      Emit("response.output_text.delta",
           PlacePart({{"delta", event.text}, {"logprobs", Json::array()}}), out);
    }
  }

  void Open(bool call, const std::string& name, std::string* out) {
    items_.push_back({call, NewId(call ? "fc_" : "msg_"), call ? NewId("call_") : "", name, ""});
    if (!stream_.stream) return;
    Json item = ItemJson(items_.back(), "in_progress");
    if (!call) item["content"] = Json::array();
    Emit("response.output_item.added",
         {{"output_index", items_.size() - 1}, {"item", std::move(item)}}, out);
    if (!call) Emit("response.content_part.added", PlacePart({{"part", Part("")}}), out);
  }

  // Closes the last item, if there is one.
  void Close(std::string* out) {
    if (items_.empty() || !stream_.stream) return;
    const Item& item = items_.back();
    if (item.call) {
      Emit("response.function_call_arguments.done",
           Place({{"name", item.name}, {"arguments", item.text}}), out);
    } else {
      Emit("response.output_text.done",
           PlacePart({{"text", item.text}, {"logprobs", Json::array()}}), out);
      Emit("response.content_part.done", PlacePart({{"part", Part(item.text)}}), out);
    }
    Emit("response.output_item.done",
         {{"output_index", items_.size() - 1},
          {"item", ItemJson(item, complete() ? "completed" : "incomplete")}},
         out);
  }

  static Json Part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  static Json ItemJson(const Item& item, const char* status) {
    if (item.call) {
      return {{"id", item.id},           {"type", "function_call"}, {"status", status},
              {"call_id", item.call_id}, {"name", item.name},       {"arguments", item.text}};
    }
    return {{"id", item.id},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", Json::array({Part(item.text)})}};
  }

  // Adds the position of the last item.
  Json Place(const Json& fields) const {
    Json event = {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
    event.update(fields);
    return event;
  }
  Json PlacePart(const Json& fields) const {
    Json event = Place({{"content_index", 0}});
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
                   {"previous_response_id", nullptr},
                   {"store", false},
                   {"usage", std::move(usage)}};
    if (std::string_view(status) == "incomplete") {
      result["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    result.update(echo_);
    return result;
  }

  void Emit(const char* type, const Json& fields, std::string* out) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    *out += fmt::format("event: {}\n", type);
    AppendEvent(event, out);
  }

  const ServedModel& model_;
  const StreamOptions stream_;
  const Json echo_;  // fields of the request that the response repeats
  const std::string id_ = NewId("resp_");
  const std::time_t created_ = std::time(nullptr);
  int64_t sequence_ = 0;
  std::optional<ToolCallParser> parser_;  // where there are tools
  std::vector<Item> items_;
  FinishReason finish_ = FinishReason::kNone;
};

// Converts a call by the assistant, or the result of one, to a chat message.
Json ReadCallItem(Fields& item, bool call) {
  const auto id = item.String("call_id");
  if (!id) item.Fail("call_id", "it is missing");
  item.Ignore({"id", "status"});
  if (!call) {
    const Json* output = item.Find("output");
    if (output == nullptr) item.Fail("output", "it is missing");
    return {{"role", "tool"},
            {"tool_call_id", *id},
            {"content", ReadContent(*output, item.Path("output"))}};
  }
  const auto name = item.String("name");
  if (!name) item.Fail("name", "it is missing");
  const Json function = {{"name", *name}, {"arguments", item.String("arguments").value_or("{}")}};
  return {{"role", "assistant"},
          {"tool_calls",
           Json::array({Json{{"id", *id}, {"type", "function"}, {"function", function}}})}};
}

// Calls of one turn form one chat message, together with the text before them.
void MergeCalls(Json* messages) {
  Json merged = Json::array();
  for (Json& message : *messages) {
    const bool follows =
        message.contains("tool_calls") && !merged.empty() && merged.back()["role"] == "assistant";
    if (!follows) {
      merged.push_back(std::move(message));
      continue;
    }
    Json& before = merged.back();
    if (!before.contains("tool_calls")) before["tool_calls"] = Json::array();
    before["tool_calls"].push_back(message["tool_calls"][0]);
  }
  *messages = std::move(merged);
}

// Converts `input`, a text or a list of messages, to chat messages.
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
    const std::string type = item.String("type").value_or("message");
    if (type == "function_call" || type == "function_call_output") {
      messages.push_back(ReadCallItem(item, type == "function_call"));
      item.Finish();
      continue;
    }
    item.RefuseUnless("type", {"message"}, "this server takes messages and calls of functions");
    const auto role = item.String("role");
    if (!role) item.Fail("role", "it is missing");
    if (!IsRole(*role) || *role == "tool") {
      item.Fail("role", "system, developer, user or assistant is expected");
    }
    const Json* content = item.Find("content");
    if (content == nullptr) item.Fail("content", "it is missing");
    item.Ignore({"id", "status"});
    item.Finish();
    messages.push_back({{"role", *role}, {"content", ReadContent(*content, item.Path("content"))}});
  }
  MergeCalls(&messages);
  return messages;
}

// Returns "text.format", for the answer.
Json ReadRest(Fields& fields, const ServedModel& model, Request* request) {
  Json text_format = {{"type", "text"}};
  fields.RefuseUnless("store", {false}, "answers are not kept");
  fields.Refuse("previous_response_id", "answers are not kept: send the whole conversation");
  fields.RefuseUnless("background", {false}, "answers are not kept");
  fields.RefuseUnless("truncation", {"disabled"});
  fields.RefuseUnless("include", {Json::array()});
  fields.RefuseUnless("top_logprobs", {0});
  for (const char* name : {"conversation", "prompt", "max_tool_calls"}) fields.Refuse(name);
  if (const Json* text = fields.Object("text")) {
    Fields inner(*text, "text.");
    text_format = ReadTextFormat(inner, model, request);
    inner.Refuse("verbosity");
    inner.Finish();
  }
  return text_format;
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
  const Json text_format = ReadRest(fields, model, &request);
  ToolUse tools = ReadTools(fields, true);
  const auto instructions = fields.String("instructions");
  // The remaining fields of a conversation are those of a chat.
  Json chat = {{"messages", ReadInput(fields, instructions)}};
  std::optional<std::string> effort;
  if (const Json* reasoning = fields.Object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    effort = inner.String("effort");
    inner.Refuse("summary");
    inner.Refuse("generate_summary");
    inner.Finish();
  }
  if (const Json* variables = fields.Find("chat_template_kwargs")) {
    chat["chat_template_kwargs"] = *variables;
  }
  fields.Finish();
  Fields chat_fields(chat);
  ChatPromptFields prompt = ReadChatPrompt(chat_fields, model);
  if (effort) SetReasoningEffort(*effort, "reasoning.effort", model, &prompt);
  ApplyTools(model, &prompt, &tools, &request);
  request.prompt = EncodeChatPrompt(prompt, model, "input");

  Json echo = {
      {"instructions", instructions ? Json(*instructions) : Json()},
      {"max_output_tokens", max_tokens ? Json(*max_tokens) : Json()},
      {"temperature", request.sampling.temperature},
      {"top_p", request.sampling.top_p},
      {"text", {{"format", text_format}}},
      {"parallel_tool_calls", tools.parallel},
      {"tool_choice", tools.choice_field},
      {"tools", body.contains("tools") && body["tools"].is_array() ? body["tools"] : Json::array()},
      {"metadata", body.value("metadata", Json::object())}};
  job.format = std::make_unique<ResponsesFormat>(model, job.stream, std::move(echo), tools);
  job.requests.push_back(std::move(request));
  SetMaxTokens(max_tokens, model.limits.default_max_tokens, model, &job);
  return job;
}

}  // namespace litecache::server
