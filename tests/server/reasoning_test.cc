// Thoughts: split from the answer in all pieces, and what a format holds for.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "server/api/answer_parser.h"
#include "server/api/anthropic_format.h"
#include "server/api/json_calls.h"
#include "server/api/responses_format.h"
#include "server/every_cut.h"
#include "server/test_server.h"
#include "server/tool_events.h"
#include "source_directory.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::AnswerParser;
using server::JsonCallParser;
using server::Thinking;
using server::ThinkTags;
using server::ToolEvent;
using server::ToolFormat;

struct Split {
  std::string thoughts, text, calls;
  bool operator==(const Split&) const = default;
};

Split Parse(Thinking thinking, const std::string& answer, size_t longest, std::mt19937_64& random,
            bool tools = false, const server::ThinkTags& tags = {}) {
  std::unique_ptr<JsonCallParser> calls;
  if (tools) {
    calls = std::make_unique<JsonCallParser>(*server::JsonTagsOf(ToolFormat::kHermes),
                                             std::set<std::string>{"f"}, 10);
  }
  AnswerParser parser(std::make_unique<server::TaggedAnswer>(thinking, tags, std::move(calls)));
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
  // Other tags, of which those before are text.
  for (const auto& [open_tag, text] :
       {std::pair("<seed:think>", "<seed:think>Hm, </think>\n</seed:think>Yes"),
        {"[THINK]", "[THINK]Hm, </think>[/THINK]\nYes"}}) {
    const server::ThinkTags tags = server::ThinkTagsOf(std::string("...") + open_tag + "...");
    EXPECT_EQ(tags.open, open_tag);
    for (size_t longest : {1, 4, 100}) {
      EXPECT_EQ(Parse(maybe, text, longest, random, false, tags),
                (Split{"Hm, </think>", "Yes", ""}));
    }
  }
  EXPECT_EQ(server::ThinkTagsOf("no thoughts").open, "<think>");
  EXPECT_EQ(server::ThinkTagsOf("<think> <response>").answer, "<response>");
  EXPECT_EQ(server::ThinkTagsOf("<think> <response> <minimax:tool_call>").answer, "");
  // A call that is only thought of is none.
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(Parse(maybe, "<think>" + call + "</think>So: " + call, 3, random, true),
            (Split{call, "So:", "f "}));
}

// Tags around thoughts and answers, and calls, of models that have them.
TEST(Reasoning, AnswersMayHaveTagsToo) {
  const auto expect = [](const std::string& chat_template, Thinking thinking, ToolFormat format,
                         const std::string& answer, const std::string& expected) {
    const ThinkTags tags = server::ThinkTagsOf(chat_template);
    const auto parse = [&](const std::vector<std::string_view>& pieces) {
      server::TaggedAnswer parts(thinking, tags,
                                 std::make_unique<JsonCallParser>(*server::JsonTagsOf(format),
                                                                  std::set<std::string>{"f"}, 10));
      std::vector<ToolEvent> events;
      for (const std::string_view piece : pieces) parts.Add(piece, &events);
      parts.Finish(&events);
      return Joined(events);
    };
    ExpectForEveryCut(answer, parse, expected);
  };
  const auto none = Thinking::kNone, maybe = Thinking::kMaybe, open = Thinking::kOpen,
             said = Thinking::kSaid;
  const auto command = ToolFormat::kCommand, hunyuan = ToolFormat::kHunyuan,
             apertus = ToolFormat::kApertus, plain = ToolFormat::kPlain;
  const std::string r7b = "<|START_THINKING|><|END_THINKING|><|START_RESPONSE|><|END_RESPONSE|>";
  expect(r7b, maybe, command,
         "<|START_THINKING|>Hm. <|END_THINKING|><|START_RESPONSE|>\nYes <|END_RESPONSE|>",
         "(Hm.)Yes");
  expect(r7b, maybe, command, "<|START_RESPONSE|>Yes.", "Yes.");
  expect(r7b, none, command, "<|START_RESPONSE|>Yes.<|END_RESPONSE|> ", "Yes.");
  expect(r7b, said, command, "es <|END_RES, <|END_RESPONSE|>.", "es <|END_RES,.");
  expect(r7b, none, command, " Yes.", " Yes.");
  expect(r7b, open, command,
         "Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_name\": \"f\", \"parameters\": {}}\n]"
         "<|END_ACTION|>",
         "(Hm.)|f|{}");
  expect(r7b, maybe, command, "<|START_RESP", "<|START_RESP");
  expect("<|START_THINKING|> <|START_TEXT|>", open, command,
         "Hm<|END_THINKING|><|START_TEXT|>Yes<|END_TEXT|>", "(Hm)Yes");
  expect("<think> <answer>", maybe, hunyuan,
         "<think>\nHm, <answer>.\n</think>\n<answer>\nYes <b>\n</answer>",
         "(Hm, <answer>.)Yes <b>");
  expect("<think> <answer>", none, hunyuan,
         "<answer>\nSo\n<tool_calls>[{\"name\": \"f\"}]</tool_calls>\n</answer>", "So|f|{}");
  expect("</think> <response>", open, plain, "Hm\n</think>\n\n<response>\nYes\n</response>\n",
         "(Hm)Yes");
  expect("</think> <response>", open, plain, "Hm\n</think>\nYes </response>",
         "(Hm)Yes </response>");
  expect("<|channel>thought\\n", maybe, plain, "<|channel>thought\nHm.\n<channel|>Yes", "(Hm.)Yes");
  expect("<|channel>thought\\n", maybe, plain, "<|channel>thought\n<channel|>Yes", "Yes");
  expect("<|channel>thought\\n", maybe, plain, "<|channel>final\nYes", "<|channel>final\nYes");
  const std::string inner = "<|inner_prefix|>";
  expect(inner, maybe, apertus, "<|inner_prefix|>Hm.<|inner_suffix|>Yes", "(Hm.)Yes");
  expect(inner, maybe, apertus,
         "<|inner_prefix|>Hm, <|tools_. <|tools_prefix|>[{\"f\": {\"a\": 1}}]<|tools_suffix|>",
         "(Hm, <|tools_.)|f|{\"a\": 1}");
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
  const std::string seed = "... <seed:think> ...";
  EXPECT_EQ(detect(seed, "Hi"), Thinking::kMaybe);
  EXPECT_EQ(detect(seed, "Hi<seed:think>"), Thinking::kOpen);
  EXPECT_EQ(detect(seed, "Hi<think>"), Thinking::kMaybe);
  const std::string gemma = "{{ '<|channel>thought\\n' }}";
  EXPECT_EQ(detect(gemma, "Hi"), Thinking::kMaybe);
  EXPECT_EQ(detect(gemma, "Hi<|channel>thought\n"), Thinking::kOpen);
  EXPECT_EQ(detect(gemma, "Hi<|channel>thought\n<channel|>"), Thinking::kNone);
  const std::string answers = "<|START_THINKING|> <|START_RESPONSE|>";
  EXPECT_EQ(detect(answers, "Hi"), Thinking::kMaybe);
  EXPECT_EQ(detect(answers, "Hi<|START_RESPONSE|>"), Thinking::kSaid);
  EXPECT_EQ(detect("<think> <response>", "Hi<|START_RESPONSE|>"), Thinking::kMaybe);
}

// Thoughts, text and a call, as the format of an API writes them.
class Formats : public ::testing::Test {
 protected:
  Formats() {
    model_.names = {"tiny"};
    stream_.stream = true;
    tools_.tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    tools_.choice = server::ToolUse::kAuto;
    tools_.format = ToolFormat::kHermes;
    tools_.thinking = Thinking::kMaybe;
  }

  static constexpr std::string_view kAnswer =
      "<think>\nhm, so\n</think>\n\nYes.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
      "1}}</tool_call>";

  // Gives the format the first `size` bytes of the answer, one by one.
  std::vector<Json> Write(server::AnswerFormat& format, size_t size, FinishReason finish) {
    std::string out;
    format.Begin(&out);
    for (size_t i = 0; i < size; ++i) {
      Chunk chunk;
      chunk.text = kAnswer[i];
      chunk.tokens = {0};
      if (i + 1 == size) chunk.finish = finish;
      format.Delta(0, chunk, &out);
    }
    format.End({.prompt_tokens = 5, .generated_tokens = static_cast<int64_t>(size)}, &out);
    std::vector<Json> events;
    for (const std::string& event : Events(out)) events.push_back(Json::parse(event));
    return events;
  }

  server::ServedModel model_;
  server::StreamOptions stream_;
  server::ToolUse tools_;
};

TEST_F(Formats, ResponsesHaveReasoningItems) {
  const auto format = server::ResponsesAnswer(model_, stream_, Json::object(), tools_);
  const auto events = Write(*format, kAnswer.size(), FinishReason::kStop);
  std::string thoughts;
  std::vector<std::string> items, parts;
  for (const Json& event : events) {
    if (event["type"] == "response.reasoning_text.delta") {
      EXPECT_EQ(event["output_index"], 0);
      thoughts += event["delta"].get<std::string>();
    }
    if (event["type"] == "response.reasoning_text.done") {
      EXPECT_EQ(event["text"], "hm, so");
    }
    if (event["type"] == "response.output_item.added") items.push_back(event["item"]["type"]);
    if (event["type"] == "response.content_part.done") parts.push_back(event["part"]["type"]);
  }
  EXPECT_EQ(thoughts, "hm, so");
  EXPECT_THAT(items, ::testing::ElementsAre("reasoning", "message", "function_call"));
  EXPECT_THAT(parts, ::testing::ElementsAre("reasoning_text", "output_text"));
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  const Json& item = response["output"][0];
  EXPECT_EQ(item["content"], Json::parse(R"([{"type": "reasoning_text", "text": "hm, so"}])"));
  EXPECT_EQ(item["summary"], Json::array());
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Yes.");
  EXPECT_EQ(response["output"][2]["arguments"], R"({"a": 1})");
  // "<think>" itself does not count, as it is read before it is known.
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"],
            kAnswer.find("\n\nYes") - kAnswer.find("\nhm"));
}

TEST_F(Formats, MessagesHaveThinkingBlocks) {
  const auto format = server::AnthropicAnswer(model_, stream_, tools_, 5, {});
  const auto events = Write(*format, kAnswer.size(), FinishReason::kStop);
  std::string thoughts;
  Json blocks = Json::array();
  for (const Json& event : events) {
    if (event["type"] == "content_block_start") blocks.push_back(event["content_block"]);
    if (event["type"] == "content_block_delta" && event["delta"]["type"] == "thinking_delta") {
      EXPECT_EQ(event["index"], 0);
      thoughts += event["delta"]["thinking"].get<std::string>();
    }
  }
  EXPECT_EQ(thoughts, "hm, so");
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0], Json::parse(R"({"type": "thinking", "thinking": "", "signature": ""})"));
  EXPECT_EQ(blocks[1]["type"], "text");
  EXPECT_EQ(blocks[2]["type"], "tool_use");
  const Json whole = format->Whole({});
  EXPECT_EQ(whole["content"][0]["thinking"], "hm, so");
  EXPECT_EQ(whole["content"][1]["text"], "Yes.");
  EXPECT_EQ(whole["content"][2]["input"], Json({{"a", 1}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
}

TEST_F(Formats, ThoughtsThatAreCutOffAreTheWholeAnswer) {
  const size_t size = kAnswer.find(", so");
  const Json response = Write(*server::ResponsesAnswer(model_, stream_, Json::object(), tools_),
                              size, FinishReason::kLength)
                            .back()["response"];
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "hm");
  const auto format = server::AnthropicAnswer(model_, stream_, tools_, 5, {});
  Write(*format, size, FinishReason::kLength);
  const Json message = format->Whole({});
  ASSERT_EQ(message["content"].size(), 1u);
  EXPECT_EQ(message["content"][0]["thinking"], "hm");
  EXPECT_EQ(message["stop_reason"], "max_tokens");
}

// The model knows nothing of tags: its letters are pushed towards them, in the order that words it
// must not say leave.
class Thinks : public SharedServerTest {
 protected:
  static void SetUpTestSuite() {
    TestServer::Options options;
    options.limits.trust_chat_template = true;
    const TemporaryDirectory directory;
    options.chat_template =
        directory.Write("template.jinja", "{{ messages[0].content }}<|assistant|><think>\n");
    Start(options);
  }

  static Json Body(const Json& more) {
    const std::vector<std::string> parts = {"<", "/", "th", "in", "k", ">"};
    Json bias = Json::object(), banned = Json::array();
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto id = server().engine().tokenizer().Encode(parts[i], {.add_special_tokens = false});
      EXPECT_EQ(id.size(), 1u) << parts[i];
      bias[std::to_string(id[0])] = 100;
      for (size_t j = 0; j < parts.size(); ++j) {
        if (j != (i + 1) % parts.size()) banned.push_back(parts[i] + parts[j]);
      }
    }
    Json body = ChatBody(
        "hi",
        {{"logit_bias", bias}, {"bad_words", banned}, {"temperature", 0}, {"max_tokens", 40}});
    body.update(more);
    return body;
  }
};

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
  // The same model says the same to a request of another API.
  Json same = body;
  for (const char* name : {"messages", "max_tokens", "logprobs"}) same.erase(name);
  same.update({{"input", "hi"}, {"max_output_tokens", 40}});
  const Json response = server().Ask("/v1/responses", same);
  EXPECT_EQ(response["output"].back()["content"][0]["text"], message["content"]);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], reasoning);
}

TEST_F(Thinks, MessagesBeginWithThoughts) {
  const Json body = ChatBody("hi", {{"max_tokens", 5}, {"temperature", 0}});
  const Json answer = server().Ask("/v1/messages", body);
  const Json chat = server().Ask("/v1/chat/completions", body);
  EXPECT_EQ(answer["content"][0]["type"], "thinking");
  EXPECT_EQ(answer["content"][0]["thinking"], chat["choices"][0]["message"]["reasoning_content"]);
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
