// Renders templates for the comparison with the reference: reads one JSON object per line on stdin,
// each with "template" and either "context" (variables, the bare language) or "messages" with the
// options of ChatTemplate; writes a line for each, {"text"} or {"error"}.
#include <fmt/format.h>

#include <iostream>
#include <string>

#include "base/error.h"
#include "requests.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/json_values.h"
#include "tokenizer/jinja/template.h"

namespace {

using litecache::tokenizer::ChatTemplate;
using nlohmann::ordered_json;
namespace jinja = litecache::tokenizer::jinja;

std::string RenderBare(const ordered_json& request) {
  const jinja::Template parsed(request["template"].get<std::string>());
  jinja::Runtime rt({}, litecache::tokenizer::GoldenTime());
  std::vector<std::pair<std::string, jinja::Value>> variables;
  for (const auto& [name, value] : request["context"].items()) {
    variables.emplace_back(name, jinja::FromJson(rt, value, true));
  }
  return parsed.Render(rt, variables).text();
}

std::string RenderChat(const ordered_json& request) {
  return ChatTemplate(request["template"].get<std::string>())
      .Apply(request["messages"], litecache::tokenizer::OptionsOf(request));
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
