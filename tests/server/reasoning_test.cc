// Thoughts: split from the answer in all pieces, and what a format holds for.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "server/api/answer_parser.h"
#include "server/test_server.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::AnswerParser;
using server::Thinking;
using server::ToolCallParser;
using server::ToolEvent;
using server::ToolFormat;

struct Split {
  std::string thoughts, text, calls;
  bool operator==(const Split&) const = default;
};

Split Parse(Thinking thinking, const std::string& answer, size_t longest, std::mt19937_64& random,
            bool tools = false) {
  std::optional<ToolCallParser> calls;
  if (tools) calls.emplace(ToolFormat::kHermes, std::set<std::string>{"f"}, 10);
  AnswerParser parser(thinking, std::move(calls));
  std::vector<ToolEvent> events;
  for (size_t at = 0; at < answer.size();) {
    const size_t size = 1 + random() % longest;
    Chunk chunk;
    chunk.text = answer.substr(at, size);
    at += size;
    if (at >= answer.size()) chunk.finish = FinishReason::kStop;
    for (ToolEvent& event : parser.Take(chunk)) events.push_back(std::move(event));
  }
  Split split;
  for (const ToolEvent& event : events) {
    EXPECT_NE(event.text, "");
    if (event.kind == ToolEvent::kReasoning) split.thoughts += event.text;
    if (event.kind == ToolEvent::kText) split.text += event.text;
    if (event.kind == ToolEvent::kBegin) split.calls += event.text + " ";
  }
  return split;
}

TEST(Reasoning, IsSplitFromTheAnswerInAllPieces) {
  auto random = TestRandom(61);
  const auto expect = [&](Thinking thinking, const std::string& answer, const Split& split) {
    for (size_t longest : {1, 2, 3, 7, 100}) {
      for (int i = 0; i < 5; ++i) {
        const Split parsed = Parse(thinking, answer, longest, random);
        EXPECT_EQ(parsed.thoughts, split.thoughts) << answer;
        EXPECT_EQ(parsed.text, split.text) << answer;
      }
    }
  };
  const auto none = Thinking::kNone, maybe = Thinking::kMaybe, open = Thinking::kOpen;
  expect(maybe, "<think>\nWell,\n\nyes.\n</think>\n\nYes  it is.\n",
         {"Well,\n\nyes.", "Yes  it is.\n", ""});
  expect(open, "\nWell </thin </think\n</think>Yes", {"Well </thin </think", "Yes", ""});
  expect(open, "cut off </th", {"cut off </th", "", ""});
  expect(open, " \n ", {"", "", ""});
  expect(open, "a</think>b</think>c", {"a", "b</think>c", ""});
  expect(maybe, " Hello <think>", {"", " Hello <think>", ""});
  expect(maybe, "<thinking>", {"", "<thinking>", ""});
  expect(maybe, "\n<think>\n\n</think>\n\nHi", {"", "Hi", ""});
  expect(maybe, "<thi", {"", "<thi", ""});
  expect(none, "<think>a</think>b", {"", "<think>a</think>b", ""});
  // A call that is only thought of is none.
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(Parse(maybe, "<think>" + call + "</think>So: " + call, 3, random, true),
            (Split{call, "So:", "f "}));
}

TEST(Reasoning, ThePromptTellsHowAnAnswerBegins) {
  const auto owned = tokenizer::Tokenizer::FromJson(FixtureTokenizer());
  const tokenizer::Tokenizer& tokenizer = *owned;
  const auto detect = [&](std::string_view chat_template, const std::string& prompt) {
    return server::DetectThinking(chat_template, tokenizer.Encode(prompt), tokenizer);
  };
  const std::string knows = "... <think> ...";
  EXPECT_EQ(detect("plain", "Hi"), Thinking::kNone);
  EXPECT_EQ(detect(knows, "Hi"), Thinking::kMaybe);
  EXPECT_EQ(detect(knows, "Hi<think>\n"), Thinking::kOpen);
  EXPECT_EQ(detect("plain", "Hi<think>"), Thinking::kOpen);
  EXPECT_EQ(detect(knows, "Hi<think>\n\n</think>\n\n"), Thinking::kNone);
}

// The model knows nothing of tags: its letters are pushed towards them, in the order that words it
// must not say leave.
class Thinks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    TestServer::Options options;
    options.limits.trust_chat_template = true;
    server_ = new TestServer(options);
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  TestServer& server() { return *server_; }

  static Json Body(const Json& more) {
    const std::vector<std::string> parts = {"<", "/", "th", "in", "k", ">"};
    Json bias = Json::object(), banned = Json::array();
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto id = server_->engine().tokenizer().Encode(parts[i], {.add_special_tokens = false});
      EXPECT_EQ(id.size(), 1u) << parts[i];
      bias[std::to_string(id[0])] = 100;
      for (size_t j = 0; j < parts.size(); ++j) {
        if (j != (i + 1) % parts.size()) banned.push_back(parts[i] + parts[j]);
      }
    }
    Json body =
        ChatBody("hi", {{"chat_template", "{{ messages[0].content }}<|assistant|><think>\n"},
                        {"logit_bias", bias},
                        {"bad_words", banned},
                        {"temperature", 0},
                        {"max_tokens", 40}});
    body.update(more);
    return body;
  }

 private:
  static TestServer* server_;
};

TestServer* Thinks::server_ = nullptr;

TEST_F(Thinks, AFormatBeginsBehindTheThoughts) {
  const Json body = Body({{"guided_choice", {"yes", "no"}}, {"logprobs", true}});
  const Json answer = server().Ask("/v1/chat/completions", body);
  const Json& message = answer["choices"][0]["message"];
  EXPECT_THAT(message["content"], ::testing::AnyOf("yes", "no"));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const auto reasoning =
      answer["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>();
  EXPECT_GE(reasoning, 6);
  EXPECT_LE(reasoning, 12);
  EXPECT_LT(reasoning, answer["usage"]["completion_tokens"].get<int>());
  std::string thoughts, content;
  size_t logprobs = 0;
  for (const Json& event : server().Stream("/v1/chat/completions", body)) {
    for (const Json& choice : event["choices"]) {
      thoughts += choice["delta"].value("reasoning_content", "");
      content += choice["delta"].value("content", "");
      if (choice["logprobs"].is_object()) logprobs += choice["logprobs"]["content"].size();
    }
  }
  EXPECT_EQ(Json(content), message["content"]);
  EXPECT_EQ(Json(thoughts), message.value("reasoning_content", Json("")));
  EXPECT_EQ(logprobs, answer["choices"][0]["logprobs"]["content"].size());
}

TEST_F(Thinks, ACallComesBehindTheThoughts) {
  const Json tools = Json::array({Json{{"type", "function"}, {"function", {{"name", "ping"}}}}});
  const Json answer =
      server().Ask("/v1/chat/completions",
                   Body({{"tools", tools}, {"tool_choice", "required"}, {"max_tokens", 200}}));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "ping");
}

TEST_F(Thinks, WhatIsCutOffIsAllThought) {
  const Json answer =
      server().Ask("/v1/chat/completions", Body({{"max_tokens", 3}, {"logit_bias", nullptr}}));
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["content"], "");
  EXPECT_TRUE(message["reasoning_content"].is_string());
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST_F(Thinks, TemplatesGetTheirVariables) {
  const auto prompt = [&](const Json& more) {
    Json body = ChatBody("hi", {{"chat_template",
                                 "{% if enable_thinking is defined and not enable_thinking %}"
                                 "<think>\n\n</think>{% else %}<think>{% endif %}"},
                                {"max_tokens", 2},
                                {"temperature", 0}});
    body.update(more);
    return server().Ask("/v1/chat/completions", body)["choices"][0]["message"];
  };
  EXPECT_TRUE(prompt(Json::object()).contains("reasoning_content"));
  EXPECT_FALSE(prompt({{"enable_thinking", false}}).contains("reasoning_content"));
  EXPECT_FALSE(prompt({{"chat_template_kwargs", {{"enable_thinking", false}}}})
                   .contains("reasoning_content"));
}

}  // namespace
}  // namespace litecache::testing
