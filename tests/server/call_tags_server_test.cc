// Requests to models that write the arguments of calls between tags, with the templates of several
// of them; the model has random weights.
#include <gmock/gmock.h>

#include "server/api/call_tags.h"
#include "server/call_templates.h"
#include "server/test_server.h"

namespace litecache::testing {
namespace {

class CallTagsServer : public SharedServerTest, public ::testing::WithParamInterface<CallTemplate> {
 protected:
  static void SetUpTestSuite() {
    TestServer::Options options;
    options.endless = true;
    options.limits.trust_chat_template = true;
    Start(options);
  }
  static Json Body(const Json& more) {
    Json body = ChatBody("x", {{"chat_template", GetParam().source},
                               {"chat_template_kwargs", {{"enable_thinking", false}}},
                               {"max_tokens", 900},
                               {"temperature", 1.2}});
    body.update(more);
    return body;
  }
  // Bounded, so that a random model comes to an end.
  static Json BoundedTools() {
    return Json::parse(R"([
        {"type": "function", "function": {"name": "keep", "parameters": {"type": "object",
            "required": ["kind", "size"], "additionalProperties": false, "properties": {
                "kind": {"enum": ["cat", "5"]}, "size": {"type": "integer", "minimum": 1, "maximum": 99},
                "note": {"type": "string", "maxLength": 8},
                "names": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 6}},
                "old": {"type": "boolean"}}}}},
        {"type": "function", "function": {"name": "ping"}}])");
  }
  static void ExpectKept(const std::string& text) {
    const Json pet = Json::parse(text, nullptr, false);
    ASSERT_TRUE(pet.is_object()) << text;
    EXPECT_THAT(pet["kind"], ::testing::AnyOf("cat", "5"));
    EXPECT_TRUE(pet["size"].is_number_integer() && pet["size"] >= 1 && pet["size"] <= 99) << text;
    EXPECT_TRUE(pet.value("note", Json("")).is_string()) << text;
    EXPECT_TRUE(pet.value("names", Json::array()).is_array()) << text;
    EXPECT_TRUE(pet.value("old", Json(true)).is_boolean()) << text;
  }
};

TEST_P(CallTagsServer, RequiredCallsFollowTheSchema) {
  for (const bool parallel : {false, true}) {
    const Json answer =
        server().Ask("/v1/chat/completions", Body({{"n", 4},
                                                   {"tools", BoundedTools()},
                                                   {"tool_choice", "required"},
                                                   {"parallel_tool_calls", parallel}}));
    for (const Json& choice : answer["choices"]) {
      Json calls = choice["message"]["tool_calls"];
      ASSERT_FALSE(calls.empty()) << choice;
      if (parallel && choice["finish_reason"] == "length") {
        // A random model may make calls without end; the last one is cut off.
        calls.erase(calls.size() - 1);
      } else {
        EXPECT_EQ(choice["finish_reason"], "tool_calls");
        EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;
      }
      if (!parallel) {
        EXPECT_EQ(calls.size(), 1u);
      }
      for (const Json& call : calls) {
        const auto arguments = call["function"]["arguments"].get<std::string>();
        if (call["function"]["name"] == "keep") {
          ExpectKept(arguments);
        } else {
          EXPECT_EQ(call["function"]["name"], "ping");
          EXPECT_EQ(arguments, "{}");
        }
      }
    }
  }
  const Json body =
      Body({{"tools", BoundedTools()},
            {"seed", 5},
            {"tool_choice", {{"type", "function"}, {"function", {{"name", "keep"}}}}}});
  const Json named = server().Ask("/v1/chat/completions", body)["choices"][0]["message"];
  ASSERT_EQ(named["tool_calls"].size(), 1u);
  ExpectKept(named["tool_calls"][0]["function"]["arguments"].get<std::string>());
  // The same in pieces: the name first.
  std::string name, arguments, finish;
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    for (const Json& choice : event["choices"]) {
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
      for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
        if (call.contains("id")) name = call["function"]["name"];
        EXPECT_EQ(name, "keep");
        arguments += call["function"]["arguments"].get<std::string>();
      }
    }
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(Json(arguments), named["tool_calls"][0]["function"]["arguments"]);
}

TEST_P(CallTagsServer, TheTemplateGetsObjects) {
  const auto prompt = [&](const std::string& arguments) {
    Json body = Body({{"tools", BoundedTools()}});
    for (const char* name : {"max_tokens", "temperature"}) body.erase(name);
    body["messages"].push_back({{"role", "assistant"},
                                {"content", "Yes."},
                                {"tool_calls",
                                 {{{"id", "1"},
                                   {"type", "function"},
                                   {"function", {{"name", "keep"}, {"arguments", arguments}}}}}}});
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "1"}, {"content", "r"}});
    return server().Ask("/apply-template", body)["prompt"].get<std::string>();
  };
  const server::CallTags& tags = *server::CallTagsOf(GetParam().format);
  const auto parameter = [&](const std::string& name, const std::string& value) {
    const grammar::ParameterTags& t = tags.parameter;
    const char* line = t.lines ? "\n" : "";
    std::string text = fmt::format("{}{}{}", t.name, name, t.name_end);
    if (!t.value.empty()) text += fmt::format("{}{}", t.separator, t.value);
    return fmt::format("{}{}{}{}{}{}", text, line, value, line, t.end, t.separator);
  };
  const auto expect = [&](const std::string& arguments, const std::string& parameters) {
    EXPECT_THAT(prompt(arguments),
                ::testing::HasSubstr(tags.BeforeCalls() + tags.BeforeArguments("keep") +
                                     parameters + tags.AfterArguments() + tags.AfterCalls()));
  };
  expect(R"({"kind": "5", "names": ["a", "b"], "size": 5})",
         parameter("kind", "5") + parameter("names", "[\"a\", \"b\"]") + parameter("size", "5"));
  expect("", "");
  // What the server gives for a call that is cut off, and what no client should send.
  for (const char* text : {R"({"kind": "c)", "[1]", "5"}) {
    expect(text, parameter("invalid_json", text));
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, CallTagsServer, ::testing::ValuesIn(CallTemplates()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace litecache::testing
