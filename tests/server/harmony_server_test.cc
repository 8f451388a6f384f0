// What requests of a model with gpt-oss's format get.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "server/test_server.h"
#include "source_directory.h"

namespace litecache::testing {
namespace {

// The small model with the format's tokens and template.
class HarmonyModel {
 public:
  HarmonyModel() : model_(8192) {
    Json tokenizer = Json::parse(FixtureTokenizer());
    for (const char* tag : {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
                            "<|return|>", "<|call|>"}) {
      Json token = tokenizer["added_tokens"][0];
      const size_t id = tokenizer["model"]["vocab"].size();
      token.update({{"id", id}, {"content", tag}});
      tokenizer["added_tokens"].push_back(token);
      tokenizer["model"]["vocab"][tag] = id;
    }
    model_.directory().Write("tokenizer.json", tokenizer.dump());
    model_.directory().Write("chat_template.jinja", Template());
  }
  static std::string Template() {
    std::ifstream file(SourceDirectory() / "tests/tokenizer_jinja/data/gpt_oss.jinja");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path() const { return model_.path(); }

 private:
  FixtureModel model_;
};

// The template alone does not make the format.
TEST(HarmonyPrompts, AFormatNeedsTheTokens) {
  TestServer::Options options;
  options.limits.trust_chat_template = true;
  TestServer server(options);
  const Json body = ChatBody("x", {{"chat_template", "<|channel|><|message|>"}, {"max_tokens", 4}});
  EXPECT_NE(server.Ask("/v1/chat/completions", body)["choices"][0]["message"]["content"], "");
  Json formed = body;
  formed["guided_choice"] = {"yes"};
  server.ExpectError("/v1/chat/completions", formed, 400, "no special token <|start|>");
}

class HarmonyServer : public SharedServerTest {
 protected:
  static void SetUpTestSuite() {
    static const HarmonyModel model;
    TestServer::Options options;
    options.model = model.path();
    Start(options);
  }

  static int32_t Id(const char* token) {
    return server().engine().tokenizer().TokenToId(token).value();
  }
  // The model knows nothing of channels: thoughts are pushed to their end, or away from it.
  static Json Body(const Json& more, int end = 100) {
    Json body = ChatBody("hi", {{"max_tokens", 300},
                                {"temperature", 0},
                                {"logit_bias", {{std::to_string(Id("<|end|>")), end}}}});
    body.update(more);
    return body;
  }
  static std::string Prompt(const Json& body) {
    return server().Ask("/apply-template", body)["prompt"];
  }
};

TEST_F(HarmonyServer, AFormatBeginsInTheFinalChannel) {
  const Json choice = {{"guided_choice", {"yes", "no"}}};
  // The answer begins with channel analysis or final.
  for (const char* first : {"a", "f"}) {
    Json body = Body(choice);
    body["logit_bias"][std::to_string(Id(first))] = 100;
    const Json answer = server().Ask("/v1/chat/completions", body);
    EXPECT_THAT(answer["choices"][0]["message"]["content"], ::testing::AnyOf("yes", "no"));
    EXPECT_GE(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    Json same = body;
    for (const char* name : {"messages", "max_tokens"}) same.erase(name);
    same.update({{"input", "hi"}, {"max_output_tokens", 300}});
    EXPECT_EQ(server().Ask("/v1/responses", same)["output"].back()["content"][0]["text"],
              answer["choices"][0]["message"]["content"]);
  }
  // A message that is open already.
  Json begun = Body(choice);
  begun["messages"].push_back({{"role", "assistant"}, {"content", "Well, "}});
  begun["continue_final_message"] = true;
  EXPECT_THAT(Prompt(begun), ::testing::EndsWith("<|channel|>final<|message|>Well, "));
  EXPECT_THAT(server().Ask("/v1/chat/completions", begun)["choices"][0]["message"]["content"],
              ::testing::AnyOf("yes", "no"));
}

TEST_F(HarmonyServer, RequiredCallsAreMessagesToFunctions) {
  const Json tools = Json::parse(R"([
      {"type": "function", "function": {"name": "ping"}},
      {"type": "function", "function": {"name": "keep", "description": "Keeps.", "parameters":
          {"type": "object", "required": ["n"], "additionalProperties": false,
           "properties": {"n": {"enum": [1, 2]}}}}}])");
  for (const Json& choice :
       {Json("required"), Json::parse(R"({"type": "function", "function": {"name": "keep"}})")}) {
    const Json body = Body({{"tools", tools}, {"tool_choice", choice}});
    const Json answer = server().Ask("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(answer["finish_reason"], "tool_calls");
    EXPECT_EQ(answer["message"]["content"], nullptr);
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u);
    const Json& function = answer["message"]["tool_calls"][0]["function"];
    const Json arguments = Json::parse(function["arguments"].get<std::string>());
    if (choice.is_object()) {
      EXPECT_EQ(function["name"], "keep");
      EXPECT_THAT(arguments["n"].get<int>(), ::testing::AnyOf(1, 2));
    }
    std::string streamed;
    for (const Json& event : server().Stream("/v1/chat/completions", body)) {
      for (const Json& part : event["choices"]) {
        for (const Json& call : part["delta"].value("tool_calls", Json::array())) {
          streamed += call["function"]["arguments"].get<std::string>();
        }
      }
    }
    EXPECT_EQ(Json(streamed), function["arguments"]);
  }
}

TEST_F(HarmonyServer, TheTemplateGetsWhatItReads) {
  Json body = {{"messages", Json::parse(R"([
      {"role": "system", "content": "One."}, {"role": "developer", "content": "Two."},
      {"role": "user", "content": "Q"},
      {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "R"}])")},
               {"reasoning_effort", "high"},
               {"tools", Json::parse(R"([{"type": "function", "function": {"name": "f"}}])")}};
  const std::string prompt = Prompt(body);
  EXPECT_THAT(prompt, ::testing::HasSubstr("Reasoning: high\n"));
  EXPECT_THAT(prompt, ::testing::HasSubstr("# Instructions\n\nOne.\n\nTwo.\n\n# Tools"));
  EXPECT_THAT(prompt, ::testing::HasSubstr("// \ntype f = () => any;"));
  EXPECT_THAT(prompt,
              ::testing::EndsWith(
                  "<|start|>user<|message|>Q<|end|>"
                  "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
                  "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
                  "{\"a\": 1}<|call|>"
                  "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"R\"<|end|>"
                  "<|start|>assistant"));
}

TEST_F(HarmonyServer, ThoughtsThatAreCutOffAreNoAnswer) {
  const Json answer =
      server().Ask("/v1/chat/completions", Body({{"guided_choice", {"yes", "no"}}}, -100));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "");
  EXPECT_GT(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 200);
}

TEST_F(HarmonyServer, ABrokenAnswerIsText) {
  // The model begins with any letter.
  Json body = Body(Json::object(), -100);
  for (const char* tag : {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"}) {
    body["logit_bias"][std::to_string(Id(tag))] = -100;
  }
  body["max_tokens"] = 20;
  const Json message = server().Ask("/v1/chat/completions", body)["choices"][0]["message"];
  EXPECT_NE(message["content"], "");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

}  // namespace
}  // namespace litecache::testing
