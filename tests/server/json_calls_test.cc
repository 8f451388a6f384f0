// Calls as JSON objects: taken apart in all pieces.
#include "server/api/json_calls.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/calls_testing.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::DetectToolFormat;
using server::JsonCallParser;
using server::JsonTagsOf;
using server::ToolEvent;
using server::ToolFormat;

class JsonCalls : public CallFormsTest {
 protected:
  std::string Parse(ToolFormat format, const Pieces& pieces) const override {
    return ParseAll(JsonCallParser(*JsonTagsOf(format), {"get_weather", "add"}, most_), pieces);
  }
};

const std::string kCall = R"({"name": "get_weather", "arguments": {"city": "P]}"}})";
const std::string kAdd = R"({"arguments": {"a": [1, {}]}, "name": "add", "id": "123456789"})";
const std::string kBoth = R"(|get_weather|{"city": "P]}"}|add|{"a": [1, {}]})";

TEST_F(JsonCalls, AsQwenWritesThem) {
  const auto hermes = ToolFormat::kHermes;
  ExpectText(hermes, "Hello <world>, a < b");
  Expect(hermes, "<tool_call>\n" + kCall + "\n</tool_call>\n<tool_call>" + kAdd + "</tool_call>\n",
         kBoth);
  Expect(hermes,
         "I look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
         "\"}</tool_call>{\\\"\"}}\n</tool_call>",
         R"(I look.|get_weather|{"city": "}</tool_call>{\""})");
  Expect(hermes, "<tool_call>{\"name\": \"add\"}</tool_call> done", "|add|{}| done");
  Expect(hermes, R"(<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>)",
         R"(|add|{"a": 1})");
  // Several behind one tag, and a list, although the template writes none.
  Expect(hermes, "<tool_call>" + kCall + "\n" + kAdd + "\n</tool_call>", kBoth);
  Expect(hermes, "<tool_call>[" + kCall + ", " + kAdd + "]</tool_call>", kBoth);
  // Cut off.
  Expect(hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1", R"(|add|{"a": 1)");
  Expect(hermes, "<tool_call>{\"name\": \"add\"}\n</tool_", "|add|{}");
  ExpectText(hermes, "x <tool_call>\n{\"na");
  ExpectText(hermes, "x <tool_");
  // Not a call.
  for (const std::string text :
       {"<tool_call> is a tag", "<tool_call>[1]", "<tool_call>[[]]", "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": 5}", "<tool_call>\n[ {\"a\"", "<tool_call>\n<tool_call>"}) {
    ExpectText(hermes, text);
  }
  Expect(hermes, "So: <tool_<tool_call>" + kCall + "</tool_call>",
         R"(So: <tool_|get_weather|{"city": "P]}"})");
}

TEST_F(JsonCalls, AsLlamaWritesThem) {
  const auto llama = ToolFormat::kLlama;
  const std::string call = R"(|get_weather|{"city": "Pa}ris"})";
  Expect(llama, R"({"name": "get_weather", "parameters": {"city": "Pa}ris"}})", call);
  Expect(llama,
         "\n<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": "
         "{\"city\": \"Pa}ris\"}}",
         call);
  Expect(llama, R"({"name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": 2}})",
         R"(|add|{}|add|{"a": 2})");
  // JSON that is an answer, and text.
  for (const std::string text :
       {R"({"name": "Bob", "parameters": {}})", R"({"a": [1, 2], "b": null} and more)", "{no",
        R"( So {"name": "add"})", "", " <|python_", R"([{"name": "add"}])"}) {
    ExpectText(llama, text);
  }
}

TEST_F(JsonCalls, AsMistralWritesThem) {
  for (const ToolFormat mistral : {ToolFormat::kMistral, ToolFormat::kMistralNames}) {
    most_ = 10;
    Expect(mistral, "[TOOL_CALLS][" + kCall + ", " + kAdd + "]", kBoth);
    Expect(mistral,
           "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"P]}\"}[TOOL_CALLS]add[CALL_ID]123456789"
           "[ARGS]{\"a\": [1, {}]}",
           kBoth);
    Expect(mistral, "[TOOL_CALLS] add{\"a\": 1}", R"(|add|{"a": 1})");
    Expect(mistral, "[TOOL_CALLS]{\"name\": \"add\"}", "|add|{}");
    Expect(mistral, "Look: [1] \n[TOOL_CALLS]add[ARGS]{}", "Look: [1]|add|{}");
    // Cut off.
    Expect(mistral, R"([TOOL_CALLS][{"name": "add", "arguments": {"a": 1)", R"(|add|{"a": 1)");
    // Not a call.
    for (const std::string& text :
         {std::string("[TOOL_CALLS]add[AR"), std::string("[TOOL_"), std::string("[TOOL_CALLS]"),
          std::string("[TOOL_CALLS] is a tag {"), "[TOOL_CALLS]" + std::string(400, 'x') + "{}"}) {
      ExpectText(mistral, text);
    }
    most_ = 1;
    Expect(mistral, "[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{\"a\": 1}", "|add|{}");
  }
}

TEST_F(JsonCalls, AsCommandWritesThem) {
  Expect(ToolFormat::kCommand,
         R"(<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "P]}"}},
    {"tool_call_id": "1", "tool_name": "add", "parameters": {"a": [1, {}]}}
]<|END_ACTION|>)",
         kBoth);
  ExpectText(ToolFormat::kCommand, "<|START_ACTION|>[\n    {\"name\": \"add\"}");
}

TEST_F(JsonCalls, AsApertusWritesThem) {
  const auto apertus = ToolFormat::kApertus;
  Expect(apertus,
         "I look.<|tools_prefix|>[{\"get_weather\": {\"city\": \"P]}\"}}, {\"add\": {\"a\": [1, "
         "{}]}}]<|tools_suffix|>",
         "I look." + kBoth);
  Expect(apertus, R"(<|tools_prefix|>[{"a\"d": "{}"}, {"name": {}}]<|tools_suffix|>.)",
         "|a\"d|{}|name|{}|.");
  Expect(apertus, "<|tools_prefix|>[{\"add\": {\"a\": 1", R"(|add|{"a": 1)");
  ExpectText(apertus, "<|tools_prefix|>[{}]");
  ExpectText(apertus, "<|tools_prefix|>[{\"add");
}

TEST_F(JsonCalls, InListsAndBetweenTags) {
  for (const auto& [format, open, close] :
       std::vector<std::tuple<ToolFormat, std::string, std::string>>{
           {ToolFormat::kGranite, "<|tool_call|>", ""},
           {ToolFormat::kPhi, "<|tool_call|>", "<|/tool_call|>"},
           {ToolFormat::kNemotron, "<TOOLCALL>", "</TOOLCALL>"},
           {ToolFormat::kHunyuan, "<tool_calls>", "</tool_calls>"}}) {
    Expect(format, "So: " + open + "[" + kCall + ", " + kAdd + "]" + close, "So:" + kBoth);
    Expect(format, open + "\n[ " + kCall + "\n,\n" + kAdd + " ]\n" + close + "\n", kBoth);
    Expect(format, open + kCall + close + open + kAdd + close, kBoth);
    Expect(format, "a " + open + "[]" + close + "b", "ab");
    // Cut off, and closed too early.
    Expect(format, open + "[" + kCall + ", {\"na", R"(|get_weather|{"city": "P]}"}| {"na)");
    Expect(format, open + "[" + kCall + close + ".", R"(|get_weather|{"city": "P]}"}|.)");
    if (!close.empty()) Expect(format, open + kCall + "\n" + kAdd + close, kBoth);
    for (const std::string& text : {open + "[{\"na", open + " none", open + "[1, 2]" + close}) {
      ExpectText(format, text);
    }
  }
}

TEST_F(JsonCalls, BeyondTheLimitAreDropped) {
  most_ = 1;
  Expect(ToolFormat::kHermes,
         "a<tool_call>" + kCall + "</tool_call>b<tool_call>" + kAdd + "</tool_call>c",
         R"(a|get_weather|{"city": "P]}"}|bc)");
  Expect(ToolFormat::kGranite, "a<|tool_call|>[" + kCall + ", " + kAdd + "]",
         R"(a|get_weather|{"city": "P]}"})");
}

TEST_F(JsonCalls, ArgumentsComeAsTheyAreWritten) {
  JsonCallParser parser(*JsonTagsOf(ToolFormat::kLlama), {"add"}, 1);
  std::vector<ToolEvent> events;
  parser.Add("{\"name\": \"add\", \"parameters\": {\"a\": 1", &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "add");
  EXPECT_EQ(events[1].text, "{\"a\": 1");
}

TEST_F(JsonCalls, DoNotDependOnThePieces) {
  const std::vector<std::string> parts = {kCall, "{\"",    "name", "\": \"", "add",  "\"}",
                                          "{",   "}",      "[",    "]",      ",",    " ",
                                          "\n",  "[ARGS]", "<",    "x",      "null", ": "};
  auto random = TestRandom(11);
  ExpectForRandomAnswers(JsonCallTemplates(), random, [&](const CallTemplate& form) {
    const server::JsonTags& tags = *JsonTagsOf(form.format);
    const size_t part = random() % (parts.size() + 4);
    return part < parts.size() ? parts[part] : std::string(part % 2 == 0 ? tags.open : tags.close);
  });
}

TEST_F(JsonCalls, TakeTimeInProportionToTheirLength) {
  const std::string blanks(4'000'000, ' ');
  ExpectProportionalTime(
      ToolFormat::kHermes,
      {blanks, "<tool_call>" + blanks, "<tool_call>" + kCall + "</tool_call>." + blanks,
       "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\":" + blanks + "1}}"});
}

TEST(ToolFormats, TheTemplateTellsTheForm) {
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
  for (const CallTemplate& form : AllCallTemplates()) {
    EXPECT_EQ(DetectToolFormat(form.source), form.format) << form.name;
  }
}

}  // namespace
}  // namespace litecache::testing
