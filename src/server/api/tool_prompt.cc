#include "server/api/tool_prompt.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

namespace litecache::server {
namespace {

void AddText(std::string_view text, const char* separator, Json* message) {
  auto& content = (*message)["content"].get_ref<std::string&>();
  if (!content.empty() && !text.empty()) content += separator;
  content += text;
}

std::string ShortId(const std::string& id) {
  const bool fits = id.size() == 9 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0;
                    });
  // FNV-1a: the same id in every request, so that kept prefixes match.
  uint64_t hash = 14695981039346656037u;
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fits ? id : fmt::format("{:09x}", hash & 0xfffffffffu);
}

// Calls become part of the message's text.
void MoveCallsToContent(ToolFormat format, Json* message) {
  std::string calls;
  for (const Json& call : message->value("tool_calls", Json::array())) {
    const Json& function = call["function"];
    if (!calls.empty()) calls += CallSeparator(format).value_or("\n");
    calls += BeforeArguments(format, function["name"].get<std::string>()) +
             Dump(function["arguments"]) + AfterArguments(format);
  }
  if (!calls.empty()) AddText(BeforeCalls(format) + calls + AfterCalls(format), "\n", message);
  message->erase("tool_calls");
}

// The function whose result a message is: that of the call with its id, or of the call at the same
// place.
std::string NameOfResult(const Json& calls, size_t place, const Json& message) {
  const Json* found = nullptr;
  for (const Json& call : calls) {
    const bool same = message.contains("tool_call_id") && call.contains("id") &&
                      call["id"] == message["tool_call_id"];
    if (same) found = &call;
  }
  if (found == nullptr && message.contains("name")) return message["name"].get<std::string>();
  if (found == nullptr && place < calls.size()) found = &calls[place];
  return found == nullptr ? "unknown" : (*found)["function"]["name"].get<std::string>();
}

// A text that is a JSON object as that object.
Json ObjectOrText(const Json& content) {
  try {
    auto limits = io::JsonLimits::OfRequest();
    Json json = io::ParseLimitedJson<Json>(content.get_ref<const std::string&>(), &limits);
    if (json.is_object()) return json;
  } catch (const io::JsonError&) {
  }
  return content;
}

}  // namespace

void WriteCallsAsText(Json* messages) {
  Json result = Json::array();
  bool merge = false;  // the next message of the user belongs to the results before it
  for (Json& message : *messages) {
    const bool tool = message["role"] == "tool";
    if (tool) {
      const auto& content = message["content"].get_ref<const std::string&>();
      message = {{"role", "user"},
                 {"content", "<tool_response>\n" + content + "\n</tool_response>"}};
    }
    MoveCallsToContent(ToolFormat::kHermes, &message);
    if (merge && message["role"] == "user") {
      AddText(message["content"].get_ref<const std::string&>(), "\n", &result.back());
    } else {
      result.push_back(std::move(message));
    }
    merge = result.back()["role"] == "user" && (tool || merge);
  }
  *messages = std::move(result);
}

void WriteCallsAsModels(ToolFormat format, Json* messages) {
  for (Json& message : *messages) MoveCallsToContent(format, &message);
}

void ExplainTools(const Json& tools, bool system_role, Json* messages) {
  std::string text = "You may call functions. They are, as JSON:\n<tools>\n";
  for (const Json& tool : tools) text += Dump(tool["function"]) + "\n";
  text +=
      "</tools>\n\nTo call a function, write its name and its arguments like this:\n<tool_call>\n"
      "{\"name\": \"NAME\", \"arguments\": {...}}\n</tool_call>\nYou may make several calls, one "
      "after another. You will be given the results between <tool_response> and "
      "</tool_response>. If no function is needed, just answer.";
  if (messages->front()["role"] == "system") return AddText(text, "\n\n", &messages->front());
  if (system_role) {
    messages->insert(messages->begin(), Json{{"role", "system"}, {"content", text}});
    return;
  }
  const auto user = std::find_if(messages->begin(), messages->end(),
                                 [](const Json& message) { return message["role"] == "user"; });
  if (user == messages->end()) return messages->push_back({{"role", "user"}, {"content", text}});
  (*user)["content"] = text + "\n\n" + (*user)["content"].get<std::string>();
}

void NestToolResults(Json* messages) {
  const auto is = [&](size_t at, const char* role) {
    return at < messages->size() && (*messages)[at]["role"] == role;
  };
  Json result = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    Json message = std::move((*messages)[i]);
    if (!message.contains("tool_calls") || !is(i + 1, "tool")) {
      result.push_back(std::move(message));
      continue;
    }
    if (message["content"] != "") {
      result.push_back({{"role", message["role"]}, {"content", message["content"]}});
      message["content"] = "";
    }
    Json responses = Json::array();
    while (is(i + 1, "tool")) {
      const Json& tool = (*messages)[++i];
      responses.push_back({{"name", NameOfResult(message["tool_calls"], responses.size(), tool)},
                           {"response", ObjectOrText(tool["content"])}});
    }
    message["tool_responses"] = std::move(responses);
    if (is(i + 1, "assistant") && !(*messages)[i + 1].contains("tool_calls")) {
      message["content"] = std::move((*messages)[++i]["content"]);
    }
    result.push_back(std::move(message));
  }
  *messages = std::move(result);
}

void MakeArgumentsObjects(Json* messages) {
  for (Json& message : *messages) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json& arguments = call["function"]["arguments"];
      if (arguments.is_object()) continue;
      const std::string text =
          arguments.is_string() ? arguments.get<std::string>() : Dump(arguments);
      arguments = Json::object();
      if (!text.empty()) arguments["invalid_json"] = text;
    }
  }
}

void ShortenCallIds(Json* messages) {
  const auto shorten = [](Json& object, const char* name) {
    if (object.contains(name)) object[name] = ShortId(object[name].get<std::string>());
  };
  for (Json& message : *messages) {
    shorten(message, "tool_call_id");
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) shorten(call, "id");
  }
}

}  // namespace litecache::server
