// Parsing of function calls in models' output.
#include "server/api/tool_calls.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "source_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::DetectToolFormat;
using server::ToolCallParser;
using server::ToolEvent;
using server::ToolFormat;

struct Parsed {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
  bool operator==(const Parsed&) const = default;
};

// Parses an answer in pieces of random sizes.
Parsed Parse(ToolFormat format, const std::string& answer, std::mt19937_64& random,
             size_t longest = 12, int most = 100) {
  ToolCallParser parser(format, {"get_weather", "add"}, most);
  std::vector<ToolEvent> events;
  for (size_t at = 0; at < answer.size();) {
    const size_t size = 1 + random() % longest;
    parser.Add(std::string_view(answer).substr(at, size), &events);
    at += size;
  }
  parser.Finish(&events);
  Parsed parsed;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::kText) {
      parsed.text += event.text;
    } else if (event.kind == ToolEvent::kBegin) {
      parsed.calls.emplace_back(event.text, "");
    } else {
      EXPECT_FALSE(parsed.calls.empty());
      parsed.calls.back().second += event.text;
    }
  }
  return parsed;
}

class ToolCalls : public ::testing::Test {
 protected:
  void Expect(ToolFormat format, const std::string& answer, const Parsed& expected,
              int most = 100) {
    for (int i = 0; i < 20; ++i) {
      const Parsed parsed = Parse(format, answer, random_, i == 0 ? 1 : 1 + i, most);
      EXPECT_EQ(parsed.text, expected.text) << answer;
      EXPECT_EQ(parsed.calls, expected.calls) << answer;
    }
  }
  std::mt19937_64 random_ = TestRandom(11);
};

TEST_F(ToolCalls, AsQwenWritesThem) {
  const auto hermes = ToolFormat::kHermes;
  Expect(hermes, "Hello <world>, a < b", {"Hello <world>, a < b", {}});
  Expect(hermes,
         "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"Paris\"}}\n</tool_call>",
         {"", {{"get_weather", "{\"city\": \"Paris\"}"}}});
  Expect(hermes,
         "I will look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"}</tool_call>{\\\"\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {}]}, "
         "\"name\": \"add\"}\n</tool_call>\n",
         {"I will look.",
          {{"get_weather", "{\"city\": \"}</tool_call>{\\\"\"}"}, {"add", "{\"a\": [1, {}]}"}}});
  Expect(hermes, "<tool_call>{\"name\": \"add\"}</tool_call> done", {" done", {{"add", "{}"}}});
  Expect(hermes, "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
         {"", {{"add", "{\"a\": 1}"}}});
  // Cut off.
  Expect(hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1",
         {"", {{"add", "{\"a\": 1"}}});
  Expect(hermes, "x <tool_call>\n{\"na", {"x<tool_call>\n{\"na", {}});
  Expect(hermes, "x <tool_", {"x <tool_", {}});
  // Not a call.
  Expect(hermes, "<tool_call> is a tag", {"<tool_call> is a tag", {}});
  // At most one.
  Expect(
      hermes,
      "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"add\", "
      "\"arguments\": {\"b\": 2}}</tool_call>",
      {"", {{"add", "{}"}}}, 1);
}

TEST_F(ToolCalls, AsLlamaWritesThem) {
  const auto llama = ToolFormat::kLlama;
  const Parsed call = {"", {{"get_weather", "{\"city\": \"Pa}ris\"}"}}};
  Expect(llama, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Pa}ris\"}}", call);
  Expect(llama,
         "\n<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": "
         "{\"city\": \"Pa}ris\"}}",
         call);
  Expect(llama,
         "{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\", \"parameters\": {\"a\": 2}}",
         {"", {{"add", "{}"}, {"add", "{\"a\": 2}"}}});
  // JSON that is an answer, and text.
  Expect(llama, "{\"name\": \"Bob\", \"parameters\": {}}",
         {"{\"name\": \"Bob\", \"parameters\": {}}", {}});
  Expect(llama, "{\"a\": [1, 2], \"b\": null} and more",
         {"{\"a\": [1, 2], \"b\": null} and more", {}});
  Expect(llama, "{no", {"{no", {}});
  Expect(llama, " So {\"name\": \"add\"}", {" So {\"name\": \"add\"}", {}});
  Expect(llama, "", {"", {}});
}

TEST_F(ToolCalls, AsMistralWritesThem) {
  const auto mistral = ToolFormat::kMistral;
  const Parsed both = {"", {{"get_weather", "{\"city\": \"P]}\"}"}, {"add", "{\"a\": [1]}"}}};
  Expect(mistral,
         "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"P]}\"}}, "
         "{\"name\": \"add\", \"arguments\": {\"a\": [1]}, \"id\": \"123456789\"}]",
         both);
  Expect(mistral,
         "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"P]}\"}[TOOL_CALLS]add[CALL_ID]123456789"
         "[ARGS]{\"a\": [1]}",
         both);
  Expect(mistral, "[TOOL_CALLS] add{\"a\": 1}", {"", {{"add", "{\"a\": 1}"}}});
  Expect(mistral, "[TOOL_CALLS]{\"name\": \"add\"}", {"", {{"add", "{}"}}});
  Expect(mistral, "Look: [1] \n[TOOL_CALLS]add[ARGS]{}", {"Look: [1]", {{"add", "{}"}}});
  // Cut off.
  Expect(mistral, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1",
         {"", {{"add", "{\"a\": 1"}}});
  Expect(mistral, "[TOOL_CALLS]add[AR", {"[TOOL_CALLS]add[AR", {}});
  Expect(mistral, "[TOOL_", {"[TOOL_", {}});
  // Not a call.
  Expect(mistral, "[TOOL_CALLS] is a tag {", {"[TOOL_CALLS] is a tag {", {}});
  const std::string text = "[TOOL_CALLS]" + std::string(1000, 'x') + "{}";
  Expect(mistral, text, {text, {}});
  // At most one.
  Expect(mistral, "[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{\"a\": 1}", {"", {{"add", "{}"}}},
         1);
}

TEST_F(ToolCalls, ArgumentsComeAsTheyAreWritten) {
  ToolCallParser parser(ToolFormat::kLlama, {"add"}, 1);
  std::vector<ToolEvent> events;
  parser.Add("{\"name\": \"add\", \"parameters\": {\"a\": 1", &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "add");
  EXPECT_EQ(events[1].text, "{\"a\": 1");
}

TEST_F(ToolCalls, TheTemplateTellsTheForm) {
  const auto read = [](const std::string& name) {
    std::ifstream file(SourceDirectory() / "tests/tokenizer_jinja/data" / name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_EQ(DetectToolFormat(read("qwen2_5.jinja")), ToolFormat::kHermes);
  EXPECT_EQ(DetectToolFormat(read("qwen3.jinja")), ToolFormat::kHermes);
  EXPECT_EQ(DetectToolFormat(read("qwen3_5.jinja")), ToolFormat::kXml);
  EXPECT_EQ(DetectToolFormat(read("llama_style.jinja")), ToolFormat::kLlama);
  EXPECT_EQ(DetectToolFormat(read("mistral_nemo.jinja")), ToolFormat::kMistral);
  EXPECT_EQ(DetectToolFormat(read("gpt_oss.jinja")), ToolFormat::kHarmony);
  EXPECT_EQ(DetectToolFormat("{% for m in messages %}{% endfor %}"), ToolFormat::kNone);
}

}  // namespace
}  // namespace litecache::testing
