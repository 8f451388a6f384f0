// /v1/messages, Anthropic's API: a request is rewritten as a chat.
#include <utility>

#include "server/api/anthropic_format.h"
#include "server/api/chat.h"
#include "server/api/messages.h"

namespace litecache::server {
namespace {

constexpr std::string_view kTextOnly =
    "blocks of type text, tool_use, tool_result and thinking are supported";

// What the blocks of one message say.
struct Blocks {
  std::string text;
  std::string reasoning;
  Json calls = Json::array();
  Json results = Json::array();  // messages of a chat
  bool has_text = false;
};

std::string Required(Fields& fields, std::string_view name) {
  auto text = fields.String(name);
  if (!text) fields.Fail(name, "it is missing");
  return std::move(*text);
}

void ReadBlock(Fields& block, Blocks* blocks) {
  block.Ignore({"cache_control", "citations", "signature", "is_error", "caller"});
  const std::string type = Required(block, "type");
  if (type == "text") {
    if (blocks->has_text) blocks->text += "\n";
    blocks->text += Required(block, "text");
    blocks->has_text = true;
  } else if (type == "tool_use") {
    Json function = {{"name", Required(block, "name")}};
    if (const Json* input = block.Object("input")) function["arguments"] = *input;
    blocks->calls.push_back(
        {{"id", Required(block, "id")}, {"type", "function"}, {"function", std::move(function)}});
  } else if (type == "tool_result") {
    const Json* content = block.Find("content");
    blocks->results.push_back(
        {{"role", "tool"},
         {"tool_call_id", Required(block, "tool_use_id")},
         {"content", content == nullptr ? "" : ReadContent(*content, block.Path("content"))}});
  } else if (type == "thinking") {
    blocks->reasoning += Required(block, "thinking");
  } else {
    block.RefuseUnless("type", {"redacted_thinking"}, kTextOnly);
    block.Ignore({"data"});
  }
  block.Finish();
}

// Adds a message. What one role says in several messages in a row is one turn.
void Append(Json message, Json* messages) {
  Json* last = messages->empty() ? nullptr : &messages->back();
  const bool joins = last != nullptr && (*last)["role"] == message["role"] &&
                     message["role"] != "tool" && !last->contains("tool_calls") &&
                     !message.contains("reasoning_content");
  if (!joins) return messages->push_back(std::move(message));
  auto& said = (*last)["content"].get_ref<std::string&>();
  const auto& more = message["content"].get_ref<const std::string&>();
  if (!said.empty() && !more.empty()) said += "\n";
  said += more;
  if (message.contains("tool_calls")) (*last)["tool_calls"] = std::move(message["tool_calls"]);
}

void ReadTurn(Fields& turn, Json* messages) {
  const std::string role = Required(turn, "role");
  if (role != "user" && role != "assistant" && role != "system") {
    turn.Fail("role", "user or assistant is expected");
  }
  const Json* content = turn.Find("content");
  if (content == nullptr) turn.Fail("content", "it is missing");
  turn.Finish();
  if (content->is_string()) return Append({{"role", role}, {"content", *content}}, messages);
  if (!content->is_array()) turn.Fail("content", "a string or an array of blocks is expected");
  Blocks blocks;
  for (size_t i = 0; i < content->size(); ++i) {
    Fields block((*content)[i], fmt::format("{}[{}].", turn.Path("content"), i));
    ReadBlock(block, &blocks);
  }
  const bool assistant = role == "assistant";
  if (assistant ? !blocks.results.empty() : !blocks.calls.empty() || !blocks.reasoning.empty()) {
    turn.Fail(
        "content",
        "blocks of type tool_result belong to the user, tool_use and thinking to the assistant");
  }
  for (Json& result : blocks.results) messages->push_back(std::move(result));
  if (!blocks.has_text && !assistant && !blocks.results.empty()) return;
  Json message = {{"role", role}, {"content", std::move(blocks.text)}};
  if (!blocks.calls.empty()) message["tool_calls"] = std::move(blocks.calls);
  if (!blocks.reasoning.empty()) message["reasoning_content"] = std::move(blocks.reasoning);
  Append(std::move(message), messages);
}

Json ReadToolList(const Json& tools) {
  Json result = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}].", i));
    tool.RefuseUnless("type", {"custom"}, "only tools with an 'input_schema' are supported");
    tool.Ignore({"cache_control", "strict", "eager_input_streaming"});
    Json function = {{"name", Required(tool, "name")}};
    if (const auto text = tool.String("description")) function["description"] = *text;
    const Json* schema = tool.Object("input_schema");
    if (schema == nullptr) tool.Fail("input_schema", "it is missing");
    function["parameters"] = *schema;
    tool.Finish();
    result.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return result;
}

void ReadToolChoice(const Json& object, Json* chat) {
  Fields choice(object, "tool_choice.");
  const std::string type = Required(choice, "type");
  if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", Required(choice, "name")}}}};
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else {
    choice.Fail("type", "auto, any, tool or none is expected");
  }
  (*chat)["parallel_tool_calls"] = !choice.Bool("disable_parallel_tool_use").value_or(false);
  choice.Finish();
}

// Thinking, and the form of the answer.
void ReadOutputFields(Fields& fields, Json* chat) {
  if (const Json* object = fields.Object("thinking")) {
    Fields thinking(*object, "thinking.");
    // Whether a template can turn it off or on, and by this name, is the model's.
    (*chat)["chat_template_kwargs"] = {
        {"enable_thinking", Required(thinking, "type") != "disabled"}};
    thinking.IgnoreUnless("budget_tokens", {}, "the length of the model's thoughts is not limited");
    thinking.Ignore({"display"});
    thinking.Finish();
  }
  const Json* form = fields.Object("output_format");
  if (const Json* object = fields.Object("output_config")) {
    Fields config(*object, "output_config.");
    if (const auto effort = config.String("effort")) (*chat)["reasoning_effort"] = *effort;
    if (const Json* inner = config.Object("format")) form = inner;
    config.Finish();
  }
  if (form == nullptr) return;
  Fields format(*form, "output_config.format.");
  format.RefuseUnless("type", {"json_schema"});
  const Json* schema = format.Object("schema");
  if (schema == nullptr) format.Fail("schema", "it is missing");
  format.Finish();
  (*chat)["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
}

// The body of a chat that asks for the same.
Json ToChat(const Json& body) {
  Fields fields(body);
  Json chat = Json::object();
  for (const char* name : {"model", "max_tokens", "temperature", "top_p", "top_k", "stream"}) {
    if (const Json* value = fields.Find(name)) chat[name] = *value;
  }
  if (const Json* stops = fields.Array("stop_sequences")) chat["stop"] = *stops;
  fields.Ignore({"metadata", "cache_control"});
  fields.IgnoreUnless("service_tier", {"auto", "standard_only"}, "the server has only one tier");
  for (const char* name : {"container", "mcp_servers"}) fields.Refuse(name);
  ReadOutputFields(fields, &chat);
  if (const Json* tools = fields.Array("tools")) chat["tools"] = ReadToolList(*tools);
  if (const Json* choice = fields.Object("tool_choice")) ReadToolChoice(*choice, &chat);

  Json messages = Json::array();
  if (const Json* system = fields.Find("system")) {
    messages.push_back({{"role", "system"}, {"content", ReadContent(*system, "system")}});
  }
  const Json* turns = fields.Array("messages");
  if (turns == nullptr || turns->empty()) {
    fields.Fail("messages", "an array of at least one message is expected");
  }
  for (size_t i = 0; i < turns->size(); ++i) {
    Fields turn((*turns)[i], fmt::format("messages[{}].", i));
    ReadTurn(turn, &messages);
  }
  fields.Finish();
  // The answer goes on with what the assistant has begun to say.
  chat["continue_final_message"] =
      messages.back()["role"] == "assistant" && !messages.back().contains("tool_calls");
  chat["messages"] = std::move(messages);
  return chat;
}

ChatJob Read(const Json& body, const ServedModel& model) {
  const Json chat = ToChat(body);
  Fields fields(chat);
  return ReadChatFields(fields, model);
}

}  // namespace

GenerationJob ReadAnthropic(const Json& body, const ServedModel& model) {
  auto [job, tools] = Read(body, model);
  const Request& request = job.requests.front();
  job.format = AnthropicAnswer(model, job.stream, tools,
                               static_cast<int64_t>(request.prompt.size()), request.stop);
  return std::move(job);
}

Json CountTokensJson(const Json& body, const ServedModel& model) {
  return {{"input_tokens", Read(body, model).job.requests.front().prompt.size()}};
}

}  // namespace litecache::server
