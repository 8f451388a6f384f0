// Renders templates for the comparison with the reference: a JSON object a line on stdin, each with
// "template" and either "context" (variables, the bare language) or "messages" with the options of
// ChatTemplate; a line out for each, {"text"}, or {"error"}.
#include <fmt/format.h>

#include <iostream>
#include <string>

#include "base/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/json_values.h"
#include "tokenizer/jinja/template.h"

namespace {

using litecache::tokenizer::ChatTemplate;
using litecache::tokenizer::ChatTemplateOptions;
using nlohmann::ordered_json;
namespace jinja = litecache::tokenizer::jinja;

// 2024-07-26 09:05:03, a Friday: the golden conversations' date.
std::tm FixedTime() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_hour = 9;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 5;
  time.tm_yday = 207;
  return time;
}

std::string RenderBare(const ordered_json& request) {
  const jinja::Template parsed(request["template"].get<std::string>());
  jinja::Runtime rt({}, FixedTime());
  std::vector<std::pair<std::string, jinja::Value>> variables;
  for (const auto& [name, value] : request["context"].items()) {
    variables.emplace_back(name, jinja::FromJson(rt, value, true));
  }
  return parsed.Render(rt, variables).text();
}

std::string RenderChat(const ordered_json& request) {
  ChatTemplateOptions options;
  options.now = FixedTime();
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  options.continue_final_message = request.value("continue_final_message", false);
  if (request.contains("tools")) options.tools = request["tools"];
  if (request.contains("documents")) options.documents = request["documents"];
  if (request.contains("variables")) options.variables = request["variables"];
  if (request.contains("special_tokens")) {
    options.special_tokens = request["special_tokens"].get<std::map<std::string, std::string>>();
  }
  return ChatTemplate(request["template"].get<std::string>()).Apply(request["messages"], options);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    ordered_json result;
    try {
      const ordered_json request = ordered_json::parse(line);
      result["text"] = request.contains("messages") ? RenderChat(request) : RenderBare(request);
    } catch (const litecache::Unsupported& e) {
      result["unsupported"] = e.what();
    } catch (const litecache::Error& e) {
      result["error"] = e.what();
    }
    std::cout << result.dump() << "\n";
  }
  return 0;
}
