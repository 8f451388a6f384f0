// /v1/messages, compared with the chat that says the same.
#include <gmock/gmock.h>

#include "server/test_server.h"
#include "temporary_directory.h"

namespace litecache::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Shows everything a message brings.
constexpr const char* kTemplate =
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if enable_thinking is defined %}thinking={{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

class Anthropic : public SharedServerTest {
 protected:
  static void SetUpTestSuite() {
    const TemporaryDirectory directory;
    TestServer::Options options;
    options.chat_template = directory.Write("template.jinja", kTemplate);
    Start(options);
  }

  static Json Message(const char* role, const Json& content) {
    return {{"role", role}, {"content", content}};
  }
  static Json Body(const Json& messages, const Json& more = Json::object()) {
    Json body = {{"model", "tiny"}, {"max_tokens", 8}, {"temperature", 0}, {"messages", messages}};
    body.update(more);
    return body;
  }
  static Json Hello(const Json& more = Json::object()) {
    return Body(Json::array({Message("user", "hello")}), more);
  }
  static Json Tools() {
    return Json::parse(R"([{"name": "keep", "description": "Keeps.", "input_schema": {
        "type": "object", "required": ["size"], "additionalProperties": false,
        "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 99}}}}])");
  }
  // The prompt that a request leads to, found by counting its tokens: that of the text.
  void ExpectPrompt(const Json& body, const std::string& text) {
    const Json tokens = server().Ask(
        "/tokenize", {{"prompt", text}, {"add_special_tokens", false}, {"parse_special", false}});
    EXPECT_EQ(server().Ask("/v1/messages/count_tokens", body)["input_tokens"], tokens["count"])
        << text;
    const Json answer = server().Ask("/v1/messages", body);
    const Json same = server().Ask(
        "/v1/completions", {{"prompt", tokens["tokens"]}, {"max_tokens", 8}, {"temperature", 0}});
    std::string said;
    for (const Json& block : answer["content"]) said += block["text"].get<std::string>();
    EXPECT_EQ(Json(said), same["choices"][0]["text"]) << text;
  }
};

TEST_F(Anthropic, PromptsOfMessages) {
  ExpectPrompt(Hello(), "[user]hello\n[assistant]");
  ExpectPrompt(Hello({{"system", "be brief"}}), "[system]be brief\n[user]hello\n[assistant]");
  const Json parts = Json::parse(
      R"([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
          {"type": "text", "text": "b"}])");
  ExpectPrompt(Body(Json::array({Message("user", parts)}), {{"system", parts}}),
               "[system]a\nb\n[user]a\nb\n[assistant]");
  // One role's messages in a row are one turn.
  ExpectPrompt(Body(Json::array({Message("user", "a"), Message("user", "b")})),
               "[user]a\nb\n[assistant]");
  // An answer that is begun.
  ExpectPrompt(Body(Json::array({Message("user", "a"), Message("assistant", "I will")})),
               "[user]a\n[assistant]I will");
  ExpectPrompt(Hello({{"thinking", {{"type", "disabled"}}}}),
               "[user]hello\nthinking=False[assistant]");
  ExpectPrompt(Hello({{"thinking", {{"type", "enabled"}, {"budget_tokens", 2000}}}}),
               "[user]hello\nthinking=True[assistant]");
}

TEST_F(Anthropic, CallsAndTheirResults) {
  const Json turns = Json::parse(R"([
      {"role": "user", "content": "x"},
      {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": "s"},
          {"type": "redacted_thinking", "data": "?"},
          {"type": "text", "text": "look"},
          {"type": "tool_use", "id": "t1", "name": "keep", "input": {"size": 3}}]},
      {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]},
          {"type": "tool_result", "tool_use_id": "t2", "is_error": true},
          {"type": "text", "text": "go"}]}])");
  ExpectPrompt(Body(turns),
               "[user]x\n[assistant]look(hm)t1keep{\"size\": 3}\n[tool]okt1\n[tool]t2\n[user]go\n"
               "[assistant]");
}

TEST_F(Anthropic, AnAnswerAndItsEvents) {
  const Json body = Hello();
  const Json chat = server().Ask("/v1/chat/completions",
                                 ChatBody("hello", {{"temperature", 0}, {"max_tokens", 8}}));
  const Json answer = server().Ask("/v1/messages", body);
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "tiny");
  ASSERT_EQ(answer["content"].size(), 1u);
  EXPECT_EQ(answer["content"][0]["text"], chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(answer["stop_reason"], "max_tokens");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(),
            chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(usage["output_tokens"], 8);

  const auto events = server().Stream("/v1/messages", body);
  std::vector<std::string> types;
  std::string text;
  for (const Json& event : events) {
    const auto type = event["type"].get<std::string>();
    if (types.empty() || type != types.back()) types.push_back(type);
    if (type == "content_block_delta") text += event["delta"]["text"].get<std::string>();
  }
  EXPECT_THAT(types, ElementsAre("message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(Json(text), answer["content"][0]["text"]);
  const Json& start = events.front()["message"];
  EXPECT_EQ(start["content"], Json::array());
  EXPECT_TRUE(start["stop_reason"].is_null());
  EXPECT_EQ(start["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  const Json& end = events[events.size() - 2];
  EXPECT_EQ(end["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(end["usage"]["output_tokens"], 8);
}

TEST_F(Anthropic, StopReasons) {
  const auto text = server().Ask("/v1/messages", Hello())["content"][0]["text"].get<std::string>();
  const size_t at = text.find_first_of("abcdefghijklmnopqrstuvwxyz");
  ASSERT_NE(at, std::string::npos) << text;
  const std::string stop = text.substr(at, 1);
  const Json answer = server().Ask("/v1/messages", Hello({{"stop_sequences", {"nowhere", stop}}}));
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], stop);
  // A form that is complete is the answer's own end.
  const Json schema = Json::parse(R"({"enum": ["yes", "no"]})");
  const Json form = {{"format", {{"type", "json_schema"}, {"schema", schema}}}};
  const Json formed =
      server().Ask("/v1/messages", Hello({{"max_tokens", 50}, {"output_config", form}}));
  EXPECT_EQ(formed["stop_reason"], "end_turn");
  EXPECT_THAT(formed["content"][0]["text"].get<std::string>(),
              ::testing::AnyOf("\"yes\"", "\"no\""));
}

TEST_F(Anthropic, Calls) {
  const Json body =
      Hello({{"max_tokens", 400}, {"tools", Tools()}, {"tool_choice", {{"type", "any"}}}});
  const Json answer = server().Ask("/v1/messages", body);
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  ASSERT_GE(answer["content"].size(), 1u);
  const Json& call = answer["content"][0];
  EXPECT_EQ(call["type"], "tool_use");
  EXPECT_EQ(call["name"], "keep");
  EXPECT_THAT(call["id"].get<std::string>(), StartsWith("toolu_"));
  EXPECT_TRUE(call["input"]["size"].is_number_integer()) << call;
  std::string json;
  for (const Json& event : server().Stream("/v1/messages", body)) {
    if (event["type"] == "content_block_start" && event["index"] == 0) {
      EXPECT_EQ(event["content_block"]["name"], "keep");
      EXPECT_EQ(event["content_block"]["input"], Json::object());
    }
    if (event["type"] == "content_block_delta" && event["index"] == 0) {
      json += event["delta"]["partial_json"].get<std::string>();
    }
  }
  EXPECT_EQ(Json::parse(json), call["input"]);
  // One of them, and no more than one.
  const Json named =
      server().Ask("/v1/messages", Hello({{"max_tokens", 400},
                                          {"tools", Tools()},
                                          {"tool_choice", {{"type", "tool"}, {"name", "keep"}}}}));
  EXPECT_EQ(named["content"].size(), 1u);
}

TEST_F(Anthropic, ErrorsHaveItsShape) {
  const auto error = [&](const Json& body, int status, const std::string& part) {
    const Reply reply = server().Post("/v1/messages", body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json parsed = Json::parse(reply.body);
    EXPECT_EQ(parsed["type"], "error");
    EXPECT_THAT(parsed["error"]["message"].get<std::string>(), HasSubstr(part));
    return parsed["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(error(Hello({{"temperature", -1}}), 400, "temperature"), "invalid_request_error");
  EXPECT_EQ(error(Hello({{"model", "other"}}), 404, "other"), "not_found_error");
  EXPECT_EQ(error(Json::object(), 400, "messages"), "invalid_request_error");
  error(Body(Json::array({Message("robot", "x")})), 400, "messages[0].role");
  error(Body(Json::array({Json{{"role", "user"}}})), 400, "messages[0].content");
  error(Body(Json::array({Message("user", Json::array({Json{{"type", "image"}}}))})), 400,
        "messages[0].content[0].type");
  error(Body(Json::array({Message(
            "user", Json::array({Json{{"type", "tool_use"}, {"id", "a"}, {"name", "b"}}}))})),
        400, "assistant");
  error(Hello({{"tools", Json::array({Json{{"name", "f"}}})}}), 400, "tools[0].input_schema");
  error(Hello({{"tools", Json::array({Json{{"type", "web_search_20250305"}, {"name", "w"}}})}}),
        400, "tools[0].type");
  error(Hello({{"mcp_servers", Json::array({1})}}), 400, "mcp_servers");
  error(Hello({{"tool_choice", {{"type", "some"}}}}), 400, "tool_choice.type");
  const Json wrong = Json::parse(server().Get("/v1/messages").body);
  EXPECT_EQ(wrong["type"], "error");
}

}  // namespace
}  // namespace litecache::testing
