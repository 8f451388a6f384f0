// gpt-oss's format: taken apart in all pieces, and what its template and the APIs get.
#include "server/api/harmony.h"

#include <gmock/gmock.h>

#include <ctime>
#include <optional>
#include <set>

#include "server/api/anthropic_format.h"
#include "server/api/responses_format.h"
#include "server/every_cut.h"
#include "server/tool_events.h"
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
  Split Parse(const Pieces& pieces) const {
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
        answer, [this](const Pieces& pieces) { return Parse(pieces); }, expected);
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
  for (int i = 0; i < 2000; ++i) {
    std::string answer;
    for (size_t count = random() % 14; count > 0; --count) {
      answer += parts[random() % parts.size()];
    }
    ExpectForRandomCuts(answer, random, [this](const Pieces& pieces) { return Parse(pieces); });
    if (HasFatalFailure()) return;
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
