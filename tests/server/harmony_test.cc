// gpt-oss's format: taken apart in all pieces, and what requests of such a model get.
#include "server/api/harmony.h"

#include <gmock/gmock.h>

#include <ctime>
#include <fstream>
#include <iterator>

#include "server/api/anthropic_format.h"
#include "server/api/responses_format.h"
#include "server/every_cut.h"
#include "server/test_server.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::HarmonyAnswer;
using server::ToolEvent;

struct Split {
  std::string thoughts, text, calls;
  bool operator==(const Split&) const = default;
};

void PrintTo(const Split& split, std::ostream* out) {
  *out << "thoughts " << split.thoughts << "\ntext     " << split.text << "\ncalls    "
       << split.calls;
}

const std::set<std::string> kFunctions = {"f", "get_weather"};

class HarmonyAnswers : public ::testing::Test {
 protected:
  Split Parse(const std::vector<std::string_view>& pieces) const {
    HarmonyAnswer parser(begun_, functions_, most_);
    std::vector<ToolEvent> events;
    for (const std::string_view piece : pieces) parser.Add(piece, &events);
    parser.Finish(&events);
    Split split;
    for (const ToolEvent& event : events) {
      EXPECT_NE(event.text, "");
      if (event.kind == ToolEvent::kReasoning) split.thoughts += event.text;
      if (event.kind == ToolEvent::kText) split.text += event.text;
      if (event.kind == ToolEvent::kBegin) split.calls += event.text + "(";
      if (event.kind == ToolEvent::kArguments) split.calls += event.text;
    }
    return split;
  }

  void Expect(const std::string& answer, const Split& expected) const {
    ExpectForEveryCut(
        answer, [this](const auto& pieces) { return Parse(pieces); }, expected);
  }

  std::string begun_ = "<|start|>assistant";
  std::optional<std::set<std::string>> functions_ = kFunctions;
  int most_ = 10;
};

TEST_F(HarmonyAnswers, ChannelsAreThoughtsAndText) {
  Expect(
      "<|channel|>analysis<|message|>Hm.\nSo <b> <|it|>.<|end|><|start|>assistant<|channel|>final"
      "<|message|> Yes <it> is.\n<|return|>",
      {"Hm.\nSo <b> <|it|>.", " Yes <it> is.\n", ""});
  // What the model ends with is not part of an answer's text.
  Expect("<|channel|>final<|message|>Yes.", {"", "Yes.", ""});
  Expect("<|channel|>final <|constrain|>JSON<|message|>{}", {"", "{}", ""});
  Expect("<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>",
         {"", "", ""});
  // Several messages of a kind.
  Expect(
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|"
      "end|>"
      "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
      "<|channel|>final<|message|>Found.",
      {"a\n\nb", "I look.\n\nFound.", ""});
}

TEST_F(HarmonyAnswers, MessagesToFunctionsAreCalls) {
  const Split call = {"hm", "", "get_weather({\"city\": \"<Paris>\"}"};
  const std::string thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
  const std::string arguments = "{\"city\": \"<Paris>\"}";
  for (const char* header :
       {"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather json<|message|>",
        "<|channel|>commentary to=get_weather <|message|>",
        "<|channel|>analysis to=functions.get_weather code<|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"}) {
    Expect(thought + header + arguments, call);
    Expect(thought + header + arguments + "<|call|>", call);
  }
  const std::string to_f = "<|channel|>commentary to=functions.f json<|message|>";
  Expect(to_f, {"", "", "f({}"});
  Expect("<|channel|>commentary<|message|>So:<|end|><|start|>assistant" + to_f + "{\"a\": 1",
         {"", "So:", "f({\"a\": 1"});
  const std::string two = to_f + "1<|call|><|start|>assistant" + to_f + "2<|call|>";
  Expect(two, {"", "", "f(1f(2"});
  most_ = 1;
  Expect(two, {"", "", "f(1"});
  // To others, and without functions.
  Expect("<|channel|>analysis to=python code<|message|>1+1", {"1+1", "", ""});
  functions_.reset();
  Expect(to_f + "{}", {"", "{}", ""});
}

TEST_F(HarmonyAnswers, WhatTheFormatDoesNotHaveIsText) {
  Expect("Hello <there>", {"", "Hello <there>", ""});
  Expect(" to be or not", {"", "to be or not", ""});
  Expect("", {"", "", ""});
  Expect("<|message|>no channel", {"", "no channel", ""});
  Expect("<|channel|>other<|message|>text", {"", "text", ""});
  Expect("<|channel|>other words<|end|>", {"", "other words", ""});
  Expect("<|channel|>other", {"", "other", ""});
  Expect("<|channel|>finalHello! Here", {"", "finalHello! Here", ""});
  Expect("<|channel|>final Hello! <|return|>", {"", "Hello! ", ""});
  Expect("<|channel|>analysis<|message|>a<|end|>b c<|start|>assistant<|channel|>final<|message|>d",
         {"a", "b c\n\nd", ""});
  // Without <|end|> or <|start|>.
  Expect("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", {"a", "b", ""});
  Expect("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
         {"a", "b", ""});
  Expect("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b", {"a", "b", ""});
  Expect("<|channel|>final<|message|>a<|message|>b<|constrain|>c", {"", "abc", ""});
  Expect("<|channel|>final<|message|>a<|end|><|start|>user<|message|>b", {"", "a\n\nb", ""});
  const std::string words = std::string(600, 'x');
  Expect("<|channel|>" + words + "<|message|>y", {"", words + "y", ""});
  Expect(words, {"", words, ""});
  // Headers that are cut off say nothing; a part of a tag is no tag.
  for (const char* cut : {"<|channel|>", "<|channel|>ana", "<|channel|>commentary to=func"}) {
    Expect(cut, {"", "", ""});
  }
  Expect("<|chan", {"", "<|chan", ""});
  Expect("<|channel|>final<|mess", {"", "<|mess", ""});
  Expect("<|channel|>final<|message|>a<|en", {"", "a<|en", ""});
}

TEST_F(HarmonyAnswers, GoOnWithTheMessageThatThePromptHasBegun) {
  begun_ = "<|start|>assistant<|channel|>final<|message|>";
  Expect("upon a time.", {"", "upon a time.", ""});
  begun_ = "<|start|>assistant<|channel|>analysis<|message|>";
  Expect("so<|end|><|start|>assistant<|channel|>final<|message|>yes", {"so", "yes", ""});
  begun_ = "";
  Expect("<|start|>assistant<|channel|>final<|message|>yes", {"", "yes", ""});
}

TEST_F(HarmonyAnswers, DoNotDependOnThePieces) {
  const std::vector<std::string> parts = {"<|start|>",
                                          "<|channel|>",
                                          "<|message|>",
                                          "<|constrain|>",
                                          "<|end|>",
                                          "<|call|>",
                                          "<|return|>",
                                          "assistant",
                                          "analysis",
                                          "final",
                                          "commentary",
                                          " to=functions.f",
                                          " to=",
                                          "json",
                                          " ",
                                          "\n",
                                          "word",
                                          "<|",
                                          "<",
                                          "|>",
                                          "é",
                                          "{\"a\": 1}",
                                          std::string(300, 'y')};
  auto random = TestRandom(62);
  for (int i = 0; i < 4000; ++i) {
    std::string answer;
    for (size_t count = random() % 14; count > 0; --count) {
      answer += parts[random() % parts.size()];
    }
    const Split whole = Parse({answer});
    std::vector<std::string_view> pieces;
    const size_t longest = 1 + random() % 20;
    for (std::string_view rest = answer; !rest.empty();) {
      pieces.push_back(rest.substr(0, 1 + random() % longest));
      rest.remove_prefix(pieces.back().size());
    }
    ASSERT_EQ(Parse(pieces), whole) << answer;
  }
}

TEST(HarmonyPrompts, MessagesAreWhatTheTemplateTakes) {
  Json messages = Json::parse(R"([
      {"role": "system", "content": "One."}, {"role": "system", "content": "Two."},
      {"role": "user", "content": "Q"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}},
          {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "2", "content": "of g"},
      {"role": "tool", "tool_call_id": "1", "content": "of f"},
      {"role": "tool", "content": "of none"},
      {"role": "assistant", "content": "A", "reasoning": "So."}])");
  server::ToHarmonyMessages(&messages);
  EXPECT_EQ(messages, Json::parse(R"([
      {"role": "system", "content": "One.\n\nTwo."},
      {"role": "user", "content": "Q"},
      {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}],
       "thinking": "Hm.\n\nI look."},
      {"role": "tool", "tool_call_id": "1", "content": "of f"},
      {"role": "assistant", "content": "", "tool_calls": [
          {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "2", "content": "of g"},
      {"role": "tool", "content": "of none"},
      {"role": "assistant", "content": "A", "reasoning": "So.", "thinking": "So."}])"));
}

// A second is a hundred times the normal duration; quadratic time would take minutes.
TEST(HarmonyPrompts, TimeIsProportionalToTheMessages) {
  const auto begun = std::clock();
  const Json user = {{"role", "user"}, {"content", "Q"}};
  Json messages = Json::array();
  for (int i = 0; i < 100'000; ++i) messages.push_back({{"role", "system"}, {"content", "S"}});
  messages.push_back(user);
  server::ToHarmonyMessages(&messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["content"].get<std::string>().size(), 100'000u + 2 * 99'999u);
  EXPECT_EQ(messages[1], user);

  Json calls = Json::array(), results = Json::array();
  for (int i = 0; i < 20'000; ++i) {
    calls.push_back({{"id", std::to_string(i)}, {"function", {{"name", "f"}}}});
    results.push_back({{"role", "tool"}, {"tool_call_id", std::to_string(2 * i)}, {"content", ""}});
  }
  messages = {user, {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}}};
  messages.insert(messages.end(), results.begin(), results.end());
  messages.push_back(user);
  server::ToHarmonyMessages(&messages);
  ASSERT_EQ(messages.size(), 40'002u);
  EXPECT_EQ(messages[1]["tool_calls"], Json::array({calls[0]}));
  EXPECT_EQ(messages[2], results[0]);
  EXPECT_EQ(messages[30'000]["tool_calls"], Json::array({calls[19'999]}));
  EXPECT_EQ(messages[30'001], results[10'000]);  // the first one that belongs to none of the calls
  EXPECT_EQ(messages.back(), user);
  EXPECT_LT(static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC, 10);
}

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

// Thoughts, a preamble and a call in the forms of the other APIs.
TEST(HarmonyFormats, OtherApisHaveTheSameParts) {
  server::ServedModel model;
  model.names = {"tiny"};
  server::StreamOptions stream;
  stream.stream = true;
  server::ToolUse tools;
  tools.tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  tools.choice = server::ToolUse::kAuto;
  tools.format = server::ToolFormat::kHarmony;
  tools.begun = server::kHarmonyPrompt;
  const std::string answer =
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>So:"
      "<|end|><|start|>assistant<|channel|>commentary to=functions.f json<|message|>{\"a\": 1}";
  const auto write = [&](server::AnswerFormat& format) {
    std::string out;
    format.Begin(&out);
    for (size_t i = 0; i < answer.size(); ++i) {
      Chunk chunk;
      chunk.text = answer[i];
      chunk.tokens = {0};
      if (i + 1 == answer.size()) chunk.finish = FinishReason::kStop;
      format.Delta(0, chunk, &out);
    }
    format.End({}, &out);
    return format.Whole({});
  };
  const Json response = write(*server::ResponsesAnswer(model, stream, Json::object(), tools));
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "So:");
  EXPECT_EQ(response["output"][2]["name"], "f");
  EXPECT_EQ(response["output"][2]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"],
            std::string("hm<|end|>").size());
  const Json message = write(*server::AnthropicAnswer(model, stream, tools, 5, {}));
  ASSERT_EQ(message["content"].size(), 3u);
  EXPECT_EQ(message["content"][0]["thinking"], "hm");
  EXPECT_EQ(message["content"][1]["text"], "So:");
  EXPECT_EQ(message["content"][2]["input"], Json({{"a", 1}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

}  // namespace
}  // namespace litecache::testing
