// /v1/responses: text in, text out. Answers are not stored: "store" and "previous_response_id" are
// rejected, and the response reports "store": false.
#include <algorithm>
#include <optional>
#include <utility>

#include "server/api/chat_prompt.h"
#include "server/api/messages.h"
#include "server/api/response_format.h"
#include "server/api/responses_format.h"

namespace litecache::server {
namespace {

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
  Json function = {{"name", *name}, {"arguments", item.String("arguments").value_or("{}")}};
  // Tools of type "custom" are functions of one text.
  if (const auto text = item.String("input")) function["arguments"] = {{"input", *text}};
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
  std::string reasoning;  // of the assistant's message that follows
  for (size_t i = 0; i < input->size(); ++i) {
    Fields item((*input)[i], fmt::format("input[{}].", i));
    const std::string type = item.String("type").value_or("message");
    if (type == "reasoning") {
      const Json* content = item.Find("content");
      if (content != nullptr) reasoning = ReadContent(*content, item.Path("content"));
      item.Ignore({"id", "status", "summary", "encrypted_content"});
      item.Finish();
      continue;
    }
    const bool call = type == "function_call" || type == "custom_tool_call";
    if (call || type == "function_call_output" || type == "custom_tool_call_output") {
      messages.push_back(ReadCallItem(item, call));
      if (call && !reasoning.empty()) messages.back()["reasoning_content"] = std::move(reasoning);
      reasoning.clear();
      item.Finish();
      continue;
    }
    item.RefuseUnless("type", {"message"},
                      "messages, calls of functions, their outputs and reasoning are expected");
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
    if (*role == "assistant" && !reasoning.empty()) {
      messages.back()["reasoning_content"] = std::move(reasoning);
    }
    reasoning.clear();
  }
  MergeCalls(&messages);
  return messages;
}

// Returns "text.format", for the answer.
Json ReadRest(Fields& fields, const ServedModel& model, Request* request) {
  Json text_format = {{"type", "text"}};
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    fields.Refuse(name, "send 'max_output_tokens'");
  }
  fields.Refuse("response_format", "send 'text.format'");
  fields.Refuse("messages", "send 'input'");
  fields.IgnoreUnless("store", {false}, "answers are not stored");
  fields.Refuse("previous_response_id",
                "answers are not stored: send the whole conversation as 'input'");
  fields.RefuseUnless("background", {false}, "answers are not stored");
  fields.IgnoreUnless("truncation", {"disabled"}, "a prompt that is too long is refused");
  if (const Json* include = fields.Array("include"); include != nullptr && !include->empty()) {
    if (std::find(include->begin(), include->end(), "message.output_text.logprobs") !=
        include->end()) {
      fields.Fail("include",
                  "responses have no log-probabilities: use /v1/chat/completions with 'logprobs'");
    }
    IgnoreField("include", "answers do not contain what it names");
  }
  fields.RefuseUnless("top_logprobs", {0});
  fields.IgnoreUnless("max_tool_calls", {}, "the server does not run tools");
  fields.Refuse("conversation", "answers are not stored: send the whole conversation as 'input'");
  fields.Refuse("prompt", "prompts are not stored: send 'instructions' and 'input'");
  if (const Json* text = fields.Object("text")) {
    Fields inner(*text, "text.");
    text_format = ReadTextFormat(inner, model, request);
    inner.IgnoreUnless("verbosity", {"medium"});
    inner.Finish();
  }
  return text_format;
}

}  // namespace

GenerationJob ReadResponses(const Json& body, const ServedModel& model) {
  Fields fields(body);
  ReadModelField(fields, model);
  fields.RefuseUnless("n", {1}, "a response has exactly one answer");
  GenerationJob job;
  Request request = ReadGenerationFields(fields, model);
  job.stream = ReadStreamFields(fields);
  const auto max_tokens = ReadMaxTokens(fields, "max_output_tokens", model);
  ToolUse tools = ReadTools(fields, true);
  // "text.format" is about the answer's text, and a required call is all of the answer.
  Request unused;
  const Json text_format = ReadRest(fields, model, tools.required() ? &unused : &request);
  const auto instructions = fields.String("instructions");
  // The remaining fields of a conversation are those of a chat.
  Json chat = {{"messages", ReadInput(fields, instructions)}};
  std::optional<std::string> effort;
  if (const Json* reasoning = fields.Object("reasoning")) {
    Fields inner(*reasoning, "reasoning.");
    effort = inner.String("effort");
    for (const char* name : {"summary", "generate_summary"}) inner.IgnoreUnless(name, {});
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
  ApplyThinking(model, prompt, &tools, &request);

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
  job.format = ResponsesAnswer(model, job.stream, std::move(echo), tools);
  job.requests.push_back(std::move(request));
  SetMaxTokens(max_tokens, model.limits.default_max_tokens, model, &job);
  return job;
}

}  // namespace litecache::server
