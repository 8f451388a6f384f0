// Requests to models that write calls in each of the forms, with templates of them; the model has
// random weights.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "server/api/call_tags.h"
#include "server/call_templates.h"
#include "server/test_server.h"
#include "temporary_directory.h"

namespace litecache::testing {
namespace {

class CallsServer : public SharedServerTest, public ::testing::WithParamInterface<CallTemplate> {
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

TEST_P(CallsServer, RequiredCallsFollowTheSchema) {
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

// Forms with the arguments between tags.
class CallTagsServer : public CallsServer {};

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
         parameter("kind", "5") +
             parameter("names", GetParam().name == "Seed" ? "['a', 'b']" : "[\"a\", \"b\"]") +
             parameter("size", "5"));
  expect("", "");
  // What the server gives for a call that is cut off, and what no client should send.
  for (const char* text : {R"({"kind": "c)", "[1]", "5"}) {
    expect(text, parameter("invalid_json", text));
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, CallsServer, ::testing::ValuesIn(AllCallTemplates()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Templates, CallTagsServer, ::testing::ValuesIn(CallTemplates()),
                         [](const auto& info) { return info.param.name; });

// A model some of whose tags are special tokens.
class SpecialTags : public SharedServerTest {
 protected:
  static void SetUpTestSuite() {
    static const TemporaryDirectory directory;
    const std::filesystem::path source = EndlessModel().path();
    for (const char* name :
         {"config.json", "model.safetensors", "generation_config.json", "tokenizer_config.json"}) {
      std::filesystem::create_symlink(std::filesystem::canonical(source / name),
                                      directory.path() / name);
    }
    std::string tokenizer = FixtureTokenizer();
    for (const auto& [from, to] :
         std::vector<std::pair<std::string, std::string>>{{"<|user|>", "<|START_ACTION|>"},
                                                          {"<|assistant|>", "<|START_THINKING|>"},
                                                          {"<|system|>", "<|END_THINKING|>"}}) {
      for (size_t at; (at = tokenizer.find(from)) != std::string::npos;) {
        tokenizer.replace(at, from.size(), to);
      }
    }
    directory.Write("tokenizer.json", tokenizer);
    TestServer::Options options;
    options.model = directory.path().string();
    options.limits.trust_chat_template = true;
    Start(options);
  }
  static Json Body(const std::string& chat_template, const Json& more) {
    Json body = ChatBody("x", {{"chat_template", chat_template},
                               {"tools", Json::parse(R"([{"type": "function", "function":
                                                          {"name": "ping"}}])")},
                               {"max_tokens", 300},
                               {"temperature", 1.2},
                               {"return_token_ids", true}});
    body.update(more);
    return body;
  }
};

constexpr int32_t kStartAction = 3, kStartThinking = 4, kEndThinking = 5;

TEST_F(SpecialTags, BeginRequiredCalls) {
  const std::string command = JsonCallTemplates()[3].source;
  const auto ask = [&](const std::string& chat_template) {
    return server().Ask("/v1/chat/completions",
                        Body(chat_template, {{"tool_choice", "required"},
                                             {"parallel_tool_calls", false},
                                             {"logit_bias", {{"5", 100}}}}))["choices"][0];
  };
  const Json called = ask(command);
  EXPECT_EQ(called["token_ids"][0], kStartAction);
  EXPECT_TRUE(called["message"]["content"].is_null());
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"]["name"], "ping");
  // Behind thoughts, whose tags are special tokens, too.
  const Json thought = ask(command + "<|START_THINKING|>");
  EXPECT_EQ(thought["token_ids"][0], kEndThinking);
  // There may be white space in between.
  const std::vector<int32_t> tokens = thought["token_ids"];
  EXPECT_LE(std::find(tokens.begin(), tokens.end(), kStartAction) - tokens.begin(), 3);
  EXPECT_TRUE(thought["message"]["content"].is_null());
  EXPECT_FALSE(thought["message"].contains("reasoning_content"));
  EXPECT_EQ(thought["message"]["tool_calls"][0]["function"]["name"], "ping");
}

TEST_F(SpecialTags, AreNoPartOfTheText) {
  // Tokens that are no tags of the form are left out, as everywhere.
  for (const CallTemplate& form : AllCallTemplates()) {
    const Json answer =
        server().Ask("/v1/chat/completions",
                     Body(form.source, {{"max_tokens", 4}, {"logit_bias", {{"1", 100}}}}));
    EXPECT_EQ(answer["choices"][0]["message"]["content"], "") << form.name;
    EXPECT_EQ(answer["choices"][0]["token_ids"], Json::parse("[1, 1, 1, 1]"));
  }
  const std::string thinks = "{{ messages[0].content }}<|START_THINKING|><|END_THINKING|>x";
  const Json answer = server().Ask(
      "/v1/chat/completions",
      Body(thinks, {{"tools", nullptr}, {"max_tokens", 3}, {"logit_bias", {{"4", 100}}}}));
  EXPECT_EQ(answer["choices"][0]["token_ids"][0], kStartThinking);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "");
}

}  // namespace
}  // namespace litecache::testing
