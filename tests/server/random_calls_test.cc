// Random calls in every form: templates, grammars and parsers agree on them.
#include <gmock/gmock.h>

#include <random>

#include "grammar/grammar_testing.h"
#include "server/api/call_tags.h"
#include "server/api/gemma_calls.h"
#include "server/api/tools.h"
#include "server/call_templates.h"
#include "server/tool_events.h"
#include "test_seed.h"
#include "tokenizer/chat_template.h"

namespace litecache::testing {
namespace {

using server::ToolEvent;
using server::ToolFormat;

// Random calls, as the model's template repeats them: the parser finds the same in them, and the
// grammar of required calls allows them.
class RandomCalls : public ::testing::TestWithParam<CallTemplate> {
 protected:
  // Without the tags that no string may contain.
  std::string Text() {
    const std::vector<std::string> parts = {
        "a",  "B 1",         " ",          "\n", "\"",   "\\", "é",         "\u2600",        "<",
        "</", "<tool_call>", "</arg_key>", "{",  "true", ">",  "</invoke>", "</function>\n", "5"};
    std::string text;
    for (size_t count = random_() % 6; count > 0; --count) text += parts[random_() % parts.size()];
    return text;
  }
  Json Value(const std::string& type) {
    if (type == "string") return Text();
    if (type == "integer") return static_cast<int64_t>(random_() % 2001) - 1000;
    if (type == "number") return static_cast<double>(random_() % 4001) / 4 + 0.25;
    if (type == "array") return Json::array({Text(), nullptr, random_() % 2 == 0, Text()});
    return {{"deep", Text()}, {"n", static_cast<int64_t>(random_() % 9)}};
  }

  std::mt19937_64 random_ = TestRandom(65);
};

TEST_P(RandomCalls, AreReadAsTheyWereMade) {
  const ToolFormat format = GetParam().format;
  Json tools = Json::parse(R"([
      {"type": "function", "function": {"name": "get-it.2", "description": "", "parameters":
          {"type": "object", "properties": {
              "text": {"type": "string"}, "count": {"type": "integer"}, "size": {"type": "number"},
              "list": {"type": "array"}, "the thing": {"type": "object"}, "last": {"type": "string"}}}}},
      {"type": "function", "function": {"name": "ping", "description": "", "parameters":
          {"type": "object", "properties": {}}}}])");
  if (format == ToolFormat::kPython) {  // names of arguments are words
    Json& properties = tools[0]["function"]["parameters"]["properties"];
    const Json thing = properties["the thing"];
    properties.erase("the thing");
    properties["the_thing"] = thing;
  }
  grammar::Frames frames;
  if (const server::CallTags* tags = server::CallTagsOf(format)) frames.form.tags = tags->parameter;
  frames.form.keywords = format == ToolFormat::kPython;
  if (format == ToolFormat::kGemma) frames.form.quotes = {server::GemmaTags::kQuote};
  frames.before = server::BeforeCalls(format);
  frames.after = server::AfterCalls(format);
  frames.separator = server::CallSeparator(format);
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    frames.any.push_back({server::BeforeArguments(format, function["name"].get<std::string>()),
                          function["parameters"], server::AfterArguments(format)});
  }
  const auto allowed = grammar::Grammar::OfFrames(frames, grammar::ByteVocabulary());
  const std::string end_of_calls = server::AfterArguments(format) + server::AfterCalls(format);
  server::ToolUse use;
  use.tools = tools;
  use.choice = server::ToolUse::kAuto;
  use.format = format;
  use.types = std::make_shared<const server::CallTypes>(server::TypesOfCalls(tools));
  const tokenizer::ChatTemplate chat_template(GetParam().source);
  tokenizer::ChatTemplateOptions options;
  options.tools = tools;
  options.add_generation_prompt = false;

  for (int round = 0; round < 200; ++round) {
    Json calls = Json::array();
    std::string expected = "Here.";
    for (size_t count = 1 + random_() % 3; count > 0; --count) {
      const Json& function = tools[random_() % 2]["function"];
      Json arguments = Json::object();
      for (const auto& [name, schema] : function["parameters"]["properties"].items()) {
        if (random_() % 2 == 0) arguments[name] = Value(schema["type"].get<std::string>());
      }
      expected += "|" + function["name"].get<std::string>() + "|" + arguments.dump();
      calls.push_back({{"type", "function"},
                       {"function", {{"name", function["name"]}, {"arguments", arguments}}}});
    }
    const std::string prompt = chat_template.Apply(
        Json::array({{{"role", "user"}, {"content", "Q"}},
                     {{"role", "assistant"}, {"content", "Here."}, {"tool_calls", calls}}}),
        options);
    // The answer in the prompt, and the calls alone.
    const size_t begin = prompt.find("Here.");
    const size_t end = end_of_calls.empty() ? prompt.rfind("</s>")
                                            : prompt.rfind(end_of_calls) + end_of_calls.size();
    const std::string answer = prompt.substr(begin, end - begin);
    const std::string written = answer.substr(answer.find_first_of("<["));
    // Seed-OSS's template writes lists and objects as Python does, and grammars as JSON.
    const bool python =
        format == ToolFormat::kSeed && (written.find("=list>") != std::string::npos ||
                                        written.find("=the thing>") != std::string::npos);
    EXPECT_TRUE(python || Accepts(*allowed, written)) << written;

    server::AnswerParser parser = use.Parser();
    std::vector<ToolEvent> parts;
    for (size_t at = 0; at < answer.size();) {
      Chunk chunk;
      chunk.text = answer.substr(at, 1 + random_() % 9);
      at += chunk.text.size();
      if (at == answer.size()) chunk.finish = FinishReason::kStop;
      // Arguments are compared as values.
      for (ToolEvent& event : parser.Take(chunk)) {
        const bool goes_on = !parts.empty() && event.kind == parts.back().kind;
        if (goes_on && event.kind != ToolEvent::kBegin) {
          parts.back().text += event.text;
        } else {
          parts.push_back(std::move(event));
        }
      }
    }
    for (ToolEvent& event : parts) {
      if (event.kind == ToolEvent::kArguments) event.text = Json::parse(event.text).dump();
    }
    EXPECT_EQ(Joined(parts), expected) << answer;
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, RandomCalls, ::testing::ValuesIn(AllCallTemplates()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace litecache::testing
