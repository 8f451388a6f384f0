// What tests of calls share: functions, and the parts of an answer as a text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/json.h"
#include "server/api/tool_calls.h"

namespace litecache::testing {

using Json = nlohmann::ordered_json;

// As "text|name(arguments)|text", in the order of the answer; thoughts as "(thoughts)".
inline std::string Joined(const std::vector<server::ToolEvent>& events) {
  using server::ToolEvent;
  std::string joined;
  auto before = ToolEvent::kText;
  for (const ToolEvent& event : events) {
    EXPECT_NE(event.text, "");
    if (before == ToolEvent::kReasoning && event.kind != before) joined += ")";
    if (event.kind == ToolEvent::kReasoning && event.kind != before) joined += "(";
    if (event.kind == ToolEvent::kBegin) joined += "|" + event.text + "|";
    const bool behind_call = before == ToolEvent::kBegin || before == ToolEvent::kArguments;
    if (event.kind == ToolEvent::kText && behind_call) joined += "|";
    if (event.kind != ToolEvent::kBegin) joined += event.text;
    before = event.kind;
  }
  return before == ToolEvent::kReasoning ? joined + ")" : joined;
}

// get_weather, with an argument of every kind, and ping, without any.
inline Json WeatherTools() {
  return Json::parse(R"([
      {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
          "required": ["city"], "properties": {
              "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
              "where": {"$ref": "#/$defs/place"}, "tags": {"type": "array"},
              "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
              "limit": {"type": ["number", "string"]}, "any": {}, "note": {"enum": ["1", "2"]},
              "odd": {"type": "thing"}},
          "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}}}}}},
      {"type": "function", "function": {"name": "ping"}}])");
}

}  // namespace litecache::testing
