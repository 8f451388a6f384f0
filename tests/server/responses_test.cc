// /v1/responses with what coding agents send.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::StartsWith;

class AgentResponses : public ::testing::Test {
 protected:
  // Hints, hosted tools and what earlier answers might have had, none of which changes an answer.
  static Json Harmless() {
    return Json::parse(R"({
        "store": true, "include": ["reasoning.encrypted_content"], "service_tier": "flex",
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "prompt_cache_key": "k", "metadata": {"a": "b"}, "client_metadata": {"c": 1},
        "parallel_tool_calls": false, "truncation": "auto", "max_tool_calls": 3,
        "tools": [{"type": "web_search", "external_web_access": false},
                  {"type": "image_generation"}], "tool_choice": "auto"})");
  }
  static Json Body(const Json& more = Json::object()) {
    Json body = {{"input", "x"}, {"max_output_tokens", 5}, {"temperature", 0}};
    body.update(more);
    return body;
  }
  static Json CustomTool() {
    return Json::parse(R"({"type": "custom", "name": "patch", "description": "Changes files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}})");
  }
  static TestServer::Options Endless() {
    TestServer::Options options;
    options.endless = true;  // a prompt that explains tools is long
    return options;
  }
  TestServer server_{Endless()};
};

TEST_F(AgentResponses, WhatIsHarmlessChangesNothing) {
  const Json plain = server_.Ask("/v1/responses", Body());
  const Json answer = server_.Ask("/v1/responses", Body(Harmless()));
  EXPECT_EQ(answer["output"][0]["content"], plain["output"][0]["content"]);
  EXPECT_EQ(answer["store"], false);
  EXPECT_EQ(answer["usage"]["input_tokens"], plain["usage"]["input_tokens"]);
}

TEST_F(AgentResponses, WhatWouldChangeTheAnswerIsRefused) {
  const auto param = [&](const Json& more) {
    const Json error = server_.ExpectError("/v1/responses", Body(more), 400, "");
    return error["param"].get<std::string>();
  };
  EXPECT_EQ(param({{"include", {"message.output_text.logprobs"}}}), "include");
  EXPECT_EQ(param({{"tools", {{{"type", "file_search"}, {"vector_store_ids", {"v"}}}}}}),
            "tools[0].type");
  EXPECT_EQ(param({{"tools", {{{"type", "mcp"}, {"server_url", "u"}}}}}), "tools[0].type");
  EXPECT_EQ(param({{"tools", {{{"type", "local_shell"}}}}}), "tools[0].type");
  EXPECT_EQ(param({{"tools", {{{"type", "web_search"}}}}, {"tool_choice", "required"}}),
            "tool_choice");
  EXPECT_EQ(param({{"previous_response_id", "r"}}), "previous_response_id");
  EXPECT_EQ(param({{"conversation", "c"}}), "conversation");
  EXPECT_EQ(param({{"background", true}}), "background");
  EXPECT_EQ(param({{"input", Json::array({Json{{"type", "item_reference"}, {"id", "i"}}})}}),
            "input[0].type");
}

TEST_F(AgentResponses, CustomToolsTakeAText) {
  const Json body = Body({{"tools", Json::array({CustomTool()})},
                          {"tool_choice", {{"type", "custom"}, {"name", "patch"}}},
                          {"max_output_tokens", 400}});
  const Json answer = server_.Ask("/v1/responses", body);
  ASSERT_EQ(answer["output"].size(), 1u);
  const Json call = answer["output"][0];
  EXPECT_EQ(call["type"], "custom_tool_call");
  EXPECT_EQ(call["name"], "patch");
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("ctc_"));
  ASSERT_TRUE(call["input"].is_string());
  EXPECT_EQ(answer["tools"][0], CustomTool());
  std::string input, done;
  for (const Json& event : server_.Stream("/v1/responses", body)) {
    if (event["type"] == "response.custom_tool_call_input.delta") input += event["delta"];
    if (event["type"] == "response.custom_tool_call_input.done") done = event["input"];
  }
  EXPECT_EQ(Json(input), call["input"]);
  EXPECT_EQ(done, input);
}

// Such as those that instructor sends: the format is one of texts, and a call is none.
TEST_F(AgentResponses, ARequiredCallNeedsNoFormatOfTheText) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"n", {{"enum", {1, 2}}}}}},
                       {"required", {"n"}},
                       {"additionalProperties", false}};
  const Json format = {{"type", "json_schema"}, {"name", "keep"}, {"schema", schema}};
  Json body =
      Body({{"tools",
             Json::array({Json{{"type", "function"}, {"name", "keep"}, {"parameters", schema}}})},
            {"tool_choice", {{"type", "function"}, {"name", "keep"}}},
            {"max_output_tokens", 400}});
  const Json plain = server_.Ask("/v1/responses", body)["output"][0];
  body["text"] = {{"format", format}};
  const Json answer = server_.Ask("/v1/responses", body);
  ASSERT_EQ(answer["output"].size(), 1u);
  EXPECT_EQ(answer["output"][0]["type"], "function_call");
  EXPECT_EQ(answer["output"][0]["arguments"], plain["arguments"]);
  EXPECT_EQ(answer["text"]["format"], format);
  // What is wrong with it is still said, and a second form of the whole answer still refused.
  body["text"]["format"]["schema"] = {{"type", "thing"}};
  server_.ExpectError("/v1/responses", body, 400, "#/type");
  body["text"]["format"] = format;
  body["guided_json"] = schema;
  server_.ExpectError("/v1/responses", body, 400, "tool_choice");
}

// The events of an item end with what the response has at the end, wherever it is cut.
TEST_F(AgentResponses, ItemsOfACutStream) {
  const Json schema = {
      {"type", "object"}, {"properties", {{"n", {{"enum", {1, 2}}}}}}, {"required", {"n"}}};
  for (int tokens = 20; tokens < 140; tokens += 3) {
    const Json body =
        Body({{"tools",
               Json::array({Json{{"type", "function"}, {"name", "keep"}, {"parameters", schema}}})},
              {"tool_choice", "required"},
              {"max_output_tokens", tokens}});
    Json items = Json::array(), output;
    for (const Json& event : server_.Stream("/v1/responses", body)) {
      if (event["type"] == "response.output_item.done") items.push_back(event["item"]);
      if (event.contains("response")) output = event["response"]["output"];
    }
    EXPECT_EQ(items, output) << tokens << " tokens";
  }
}

// The next turn is the chat's that says the same.
TEST_F(AgentResponses, EarlierItems) {
  const Json items = Json::parse(R"([
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "s"}]},
      {"role": "user", "content": "x"},
      {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e",
       "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "aa"},
      {"type": "custom_tool_call_output", "call_id": "1", "output": "done"}])");
  const Json chat = Json::parse(R"([
      {"role": "system", "content": "s"}, {"role": "user", "content": "x"},
      {"role": "assistant", "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "patch", "arguments": "{\"input\": \"aa\"}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "done"}])");
  const Json answer = server_.Ask("/v1/responses", Body({{"input", items}}));
  const Json same = server_.Ask("/v1/chat/completions",
                                {{"messages", chat}, {"max_tokens", 5}, {"temperature", 0}});
  EXPECT_EQ(answer["usage"]["input_tokens"], same["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], same["choices"][0]["message"]["content"]);
}

}  // namespace
}  // namespace litecache::testing
