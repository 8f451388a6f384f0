#include "server/api/messages.h"

#include <algorithm>
#include <array>

#include "server/api/fields.h"

namespace litecache::server {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// Clients send arguments as a string of JSON, or as an object; templates print objects. Invalid
// JSON stays a string: models produce such arguments, and clients send them back.
Json ReadArguments(Fields& function, io::JsonLimits* limits) {
  const Json* given = function.Find("arguments");
  if (given == nullptr) return Json::object();
  if (given->is_object()) return *given;
  const std::string field = function.Path("arguments"), text = *function.String("arguments");
  try {
    return io::ParseLimitedJson<Json>(text, limits);
  } catch (const io::JsonError& error) {
    if (!error.is_limit()) return text;
    throw BadRequest(field, "'{}': {}", field, error.what());
  }
}

Json ReadToolCalls(const Json& calls, const std::string& where, io::JsonLimits* limits) {
  Json result = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string path = fmt::format("{}tool_calls[{}].", where, i);
    Fields call(calls[i], path);
    Json rewritten = Json::object();
    if (const auto id = call.String("id")) rewritten["id"] = *id;
    call.RefuseUnless("type", {"function"});
    call.Ignore({"index"});
    rewritten["type"] = "function";
    const Json* function = call.Object("function");
    if (function == nullptr) {
      throw BadRequest(path + "function", "'{}function' is missing", path);
    }
    Fields inner(*function, path + "function.");
    const auto name = inner.String("name");
    if (!name) throw BadRequest(path + "function.name", "'{}function.name' is missing", path);
    rewritten["function"] = {{"name", *name}, {"arguments", ReadArguments(inner, limits)}};
    inner.Finish();
    call.Finish();
    result.push_back(std::move(rewritten));
  }
  return result;
}

Json ReadMessage(const Json& message, const std::string& where, io::JsonLimits* limits) {
  Fields fields(message, where);
  const auto role = fields.String("role");
  if (!role) throw BadRequest(where + "role", "'{}role' is missing", where);
  if (!IsRole(*role)) {
    fields.Fail("role", "system, developer, user, assistant or tool is expected");
  }
  Json result = {{"role", *role == "developer" ? "system" : *role}};
  const Json* calls = fields.Array("tool_calls");
  if (calls != nullptr && *role != "assistant") {
    fields.Fail("tool_calls", "only messages of the assistant can have tool calls");
  }
  if (const Json* content = fields.Find("content")) {
    result["content"] = ReadContent(*content, fields.Path("content"));
  } else if ((calls != nullptr && !calls->empty()) ||
             (*role == "assistant" && message.contains("content"))) {
    // Clients send an answer back as they got it; one without text has null, from many servers.
    result["content"] = "";
  } else {
    throw BadRequest(where + "content", "'{}content' is missing", where);
  }
  if (calls != nullptr && !calls->empty())
    result["tool_calls"] = ReadToolCalls(*calls, where, limits);
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) {
    if (auto text = fields.String(name)) result[name] = std::move(*text);
  }
  fields.RefuseUnless("refusal", {""});
  fields.Refuse("audio");
  fields.Refuse("function_call", "send 'tool_calls'");
  fields.Ignore({"annotations"});
  fields.Finish();
  return result;
}

}  // namespace

std::string ReadContent(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    throw BadRequest(where, "'{}' = {}: a string or an array of parts is expected", where,
                     Excerpt(content));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}].", where, i));
    part.RefuseUnless("type", {"text", "input_text", "output_text", "reasoning_text", "refusal"},
                      "this server accepts only text");
    const auto type = part.String("type");
    if (!type) part.Fail("type", "it is missing");
    // Earlier answers, of other servers, may be refusals.
    const char* const field = *type == "refusal" ? "refusal" : "text";
    const auto piece = part.String(field);
    if (!piece) part.Fail(field, "it is missing");
    part.Ignore({"annotations", "logprobs", "cache_control", "citations"});
    part.Finish();
    if (i > 0) text += "\n";
    text += *piece;
  }
  return text;
}

bool IsRole(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

Json ReadMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    throw BadRequest("messages", "'messages' = {}: an array of at least one message is expected",
                     Excerpt(messages));
  }
  auto limits = io::JsonLimits::OfRequest();  // shared by the arguments of all calls
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    result.push_back(ReadMessage(messages[i], fmt::format("messages[{}].", i), &limits));
  }
  return result;
}

}  // namespace litecache::server
