// Calls with their arguments in tags, as Qwen3.5 writes them: taken apart in all pieces, and what
// the APIs make of them.
#include "server/api/xml_calls.h"

#include <gmock/gmock.h>

#include <chrono>

#include "server/api/anthropic_format.h"
#include "server/api/responses_format.h"
#include "server/calls_testing.h"
#include "server/test_server.h"
#include "tokenizer/utf8.h"

namespace litecache::testing {
namespace {

using server::CallTypes;
using server::ToolEvent;
using server::ToolFormat;
using server::XmlCallParser;

class XmlCalls : public ::testing::Test {
 protected:
  std::string Parse(const Pieces& pieces) const {
    return ParseAll(XmlCallParser(*server::CallTagsOf(ToolFormat::kXml), types_, most_), pieces);
  }
  void Expect(const std::string& answer, const std::string& expected) const {
    ExpectForEveryCut(
        answer, [this](const auto& pieces) { return Parse(pieces); }, expected);
  }
  // One argument of get_weather, as JSON.
  void ExpectValue(const std::string& name, const std::string& value,
                   const std::string& json) const {
    Expect("<tool_call>\n<function=get_weather>\n<parameter=" + name + ">\n" + value +
               "\n</parameter>\n</function>\n</tool_call>",
           "|get_weather|{\"" + name + "\": " + json + "}");
  }

  std::shared_ptr<const CallTypes> types_ =
      std::make_shared<const CallTypes>(server::TypesOfCalls(WeatherTools()));
  int most_ = 10;
};

TEST_F(XmlCalls, StandBetweenText) {
  Expect("Hello <world>, a < b <", "Hello <world>, a < b <");
  Expect(
      "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
      "<function=ping>\n</function>\n</tool_call>\nDone. \n",
      "I look.|get_weather|{\"city\": \"Paris\", \"days\": 3}|ping|{}|\nDone.");
  Expect("<tool_call>\n<function=ping>\n</function>\n</tool_call> \n", "|ping|{}");
  // A function that is not offered is the client's to refuse.
  Expect("<tool_call><function=f><parameter=a>1</parameter></function></tool_call> So",
         "|f|{\"a\": \"1\"}| So");
}

TEST_F(XmlCalls, ValuesFollowTheSchema) {
  for (const auto& [value, json] : std::vector<std::pair<std::string, std::string>>{
           {"", R"("")"},
           {"\n", R"("\n")"},
           {" 5 ", R"(" 5 ")"},
           {"null", R"("null")"},
           {"a\n b\r\n\n", R"("a\n b\u000d\n\n")"},
           {"Zürich ☀", R"("Zürich ☀")"},
           {"\"q\" \\n\t", R"("\"q\" \\n\u0009")"},
           {"x < y </b> </parameter", R"("x < y </b> </parameter")"},
           {"if (a<b) {\n  f();\n}", R"("if (a<b) {\n  f();\n}")"},
           {"a</parameter>b", R"("a</parameter>b")"},
           {"</function>\n</tool_call>", R"("</function>\n</tool_call>")"},
           {"<parameter=days>\n3", R"("<parameter=days>\n3")"}}) {
    ExpectValue("city", value, json);
    ExpectValue("odd", value, json);
    ExpectValue("unknown", value, json);
  }
  ExpectValue("days", "3", "3");
  ExpectValue("days", " -12345678901234567890 ", "-12345678901234567890");
  ExpectValue("days", "three", "\"three\"");
  ExpectValue("days", "", "\"\"");
  ExpectValue("days", "3 days", "\"3 days\"");
  ExpectValue("days", "NaN", "\"NaN\"");
  ExpectValue("exact", "true", "true");
  ExpectValue("exact", "False", "false");
  ExpectValue("where", "{\"lat\": 1.50,\n \"name\": \"</b>\"}",
              "{\"lat\": 1.50,\n \"name\": \"</b>\"}");
  ExpectValue("where", "{\"lat\": 1", "\"{\\\"lat\\\": 1\"");
  ExpectValue("where", "\xFF", "\"\xFF\"");
  ExpectValue("tags", "[\"a\", [1, null]]", "[\"a\", [1, null]]");
  ExpectValue("tags", std::string(200, '['), "\"" + std::string(200, '[') + "\"");
  // Several types: what is no string comes first.
  ExpectValue("unit", "null", "null");
  ExpectValue("unit", "None", "null");
  ExpectValue("unit", "nullable", "\"nullable\"");
  ExpectValue("unit", "5", "\"5\"");
  ExpectValue("unit", "\"C\"", "\"\\\"C\\\"\"");
  ExpectValue("limit", "5", "5");
  ExpectValue("limit", "5.5", "5.5");
  ExpectValue("limit", "true", "\"true\"");
  ExpectValue("any", "5", "5");
  ExpectValue("any", "five", "\"five\"");
  ExpectValue("note", "1", "\"1\"");
}

TEST_F(XmlCalls, TagsMayBeMissing) {
  const std::string city = "<parameter=city>\nParis\n</parameter>";
  const std::string call = "|get_weather|{\"city\": \"Paris\"}";
  Expect("<function=get_weather>\n" + city + "\n</function>", call);
  Expect("So:\n<function=get_weather>\n" + city + "\n</function>\n</tool_call>\n", "So:" + call);
  Expect("<tool_call>\n<function=get_weather>\n" + city + "\n</tool_call> So", call + "| So");
  Expect("<function=get_weather>" + city + "<function=ping></function>", call + "|ping|{}");
  Expect("<tool_call><function=get_weather>" + city + "<tool_call><function=ping></function>",
         call + "|ping|{}");
  Expect("<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>", call);
  Expect(
      "<function=get_weather><parameter=city>Paris</parameter> \n<parameter=days>3"
      "</parameter></tool_call>",
      "|get_weather|{\"city\": \"Paris\", \"days\": 3}");
  Expect("<function=get_weather><parameter=city></parameter></function>",
         "|get_weather|{\"city\": \"\"}");
  // A further function behind the same tag is a call even if it is not offered.
  Expect("<tool_call><function=ping></function>\n<function=f></function>\n</tool_call>",
         "|ping|{}|f|{}");
  Expect("<function=ping></function>\n<function=f></function>",
         "|ping|{}|\n<function=f></function>");
  // What is between parameters, or is none.
  Expect("<function=get_weather> hm <b> " + city + " <parameter=> <parameter=a\nb> </function>",
         call);
  // A second value.
  Expect("<function=get_weather>" + city + "<parameter=city>\nRome\n\n</parameter>\n</function>",
         call);
}

TEST_F(XmlCalls, WhatIsNoneIsText) {
  for (const std::string text :
       {"<tool_call> is a tag", "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
        "std::<function=int>", "a <function=f>\n</function>", "<function=ping is", "<function=>",
        "<tool_call>\n<function=>", "<tool_call>\n<function=a b>", " \n", ""}) {
    Expect(text, text);
  }
  const std::string longest(128, 'n');
  Expect("<tool_call><function=" + longest + "></function>", "|" + longest + "|{}");
  Expect("<tool_call><function=" + longest + "n></function>",
         "<tool_call><function=" + longest + "n></function>");
  // One behind it.
  Expect("<tool_call>\n<tool_call>\n<function=ping>\n</function>", "<tool_call>|ping|{}");
  Expect("<function=<function=ping></function>", "<function=|ping|{}");
}

TEST_F(XmlCalls, MayBeCutOff) {
  const std::string answer =
      "Hm <tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>";
  const auto expect = [&](const std::string& end, const std::string& expected) {
    Expect(answer.substr(0, answer.find(end) + end.size()), expected);
  };
  expect("<tool_", "Hm <tool_");
  expect("<function=get", "Hm <tool_call>\n<function=get");
  expect("get_weather>", "Hm|get_weather|");
  expect("<parameter=ci", "Hm|get_weather|");
  expect("city>", "Hm|get_weather|{\"city\": \"");
  expect("Par", "Hm|get_weather|{\"city\": \"Par");
  expect("Paris\n</para", "Hm|get_weather|{\"city\": \"Paris");
  expect("</parameter>", "Hm|get_weather|{\"city\": \"Paris\"");
  expect("days>\n3", "Hm|get_weather|{\"city\": \"Paris\"");
  expect("3\n</parameter>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3");
  expect("</function>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3}");
}

TEST_F(XmlCalls, BeyondTheLimitAreDropped) {
  most_ = 1;
  Expect(
      "a<tool_call><function=ping></function></tool_call>b<tool_call><function=get_weather>"
      "<parameter=city>\nx\n</parameter></function></tool_call>c",
      "a|ping|{}|bc");
}

TEST_F(XmlCalls, ComeAsTheyAreWritten) {
  XmlCallParser parser(*server::CallTagsOf(ToolFormat::kXml), types_, 1);
  const auto add = [&](std::string_view piece) {
    std::vector<ToolEvent> events;
    parser.Add(piece, &events);
    return Joined(events);
  };
  EXPECT_EQ(add("Yes <b"), "Yes <b");
  EXPECT_EQ(add(".\n<tool_call>\n<function=get_weather>"), ".|get_weather|");
  EXPECT_EQ(add("<parameter=city>"), "{\"city\": \"");
  EXPECT_EQ(add("\nNew "), "New ");
  EXPECT_EQ(add("York\n"), "York");
  EXPECT_EQ(add("City</param"), "\\nCity");
  EXPECT_EQ(add("eter>"), "");
  EXPECT_EQ(add("\n<parameter=days>\n"), "\"");
  EXPECT_EQ(add("1"), "");
  EXPECT_EQ(add("\n</parameter>"), ", \"days\": 1");
  EXPECT_EQ(add("</function>"), "}");
}

// Takes seconds; moving or copying what is pending with every piece would take hours.
TEST_F(XmlCalls, TakeTimeInProportionToTheirLength) {
  constexpr size_t kSize = 4'000'000;
  const auto repeat = [](const std::string& text) {
    std::string repeated;
    while (repeated.size() < kSize) repeated += text;
    return repeated;
  };
  const std::string call = "<tool_call><function=get_weather>", city = call + "<parameter=city>";
  std::string parameters = call;
  for (int i = 0; i < 50'000; ++i)
    parameters += fmt::format("<parameter=p{}>\n1\n</parameter>\n", i);
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& answer :
       {repeat("<"), repeat(" "), repeat("<tool_call>"), repeat("<function="),
        repeat("<function=p"), call + repeat(" "), call + repeat("<"), city + repeat("<"),
        city + repeat("\n"), city + repeat("</parameter>"), city + "a</parameter>" + repeat(" "),
        call + "<parameter=days>" + repeat("1"), call + "<parameter=days>" + repeat("[{"),
        call + "<parameter=" + repeat("n"), "<tool_call>" + repeat(" "),
        repeat("<tool_call><function=ping></function></tool_call> "), parameters}) {
    EXPECT_EQ(Parse(PiecesOf(answer, 3)), Parse({answer}));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(5));
}

TEST(XmlTypes, AreTheSchemasOrNone) {
  const auto types = [](const char* schema) {
    return server::TypesOfCalls(
        Json::array({{{"type", "function"},
                      {"function", {{"name", "f"}, {"parameters", Json::parse(schema)}}}}}))["f"];
  };
  const auto named = [](const std::set<std::string>& names) {
    return server::ArgumentTypes{{"a", names}};
  };
  EXPECT_EQ(types(R"({"properties": {"a": {"type": ["null", "string"]}}})"),
            named({"null", "string"}));
  EXPECT_EQ(types(R"({"properties": {"a": {"const": 1}}})"), named({"integer"}));
  EXPECT_EQ(types(R"({"properties": {"a": {"pattern": "x"}}})"), named({"string"}));
  EXPECT_EQ(types(R"({"properties": {"a": {"allOf": [{"type": ["string", "integer"]},
                      {"type": ["integer", "null"]}]}}})"),
            named({"integer"}));
  EXPECT_EQ(types(R"({"anyOf": [{"properties": {"a": {"type": "array"}}}, {"$ref": "#/$defs/b"}],
                      "$defs": {"b": {"properties": {"a": {"type": "string"}}}}})"),
            named({"array", "string"}));
  // Schemas that are wrong, never end, or are too complex.
  for (const char* schema :
       {"true", "1", R"({"properties": 1})", R"({"properties": {"a": {"type": "thing"}}})",
        R"({"properties": {"a": {"$ref": "#/properties/a"}}})",
        R"({"properties": {"a": {"$ref": "http://x"}}})", R"({"allOf": [{"$ref": "#"}]})",
        R"({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}})",
        R"({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"},
            {"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}}})"}) {
    EXPECT_EQ(types(schema), server::ArgumentTypes()) << schema;
  }
}

constexpr const char* kAnswer =
    "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";

// What the APIs make of an answer that arrives byte by byte.
class XmlFormats : public ::testing::Test {
 protected:
  XmlFormats() {
    model_.names = {"tiny"};
    stream_.stream = true;
    tools_.tools = WeatherTools();
    tools_.choice = server::ToolUse::kAuto;
    tools_.format = ToolFormat::kXml;
    tools_.types = std::make_shared<const CallTypes>(server::TypesOfCalls(tools_.tools));
  }

  static std::vector<Json> Write(server::AnswerFormat& format) {
    std::string out;
    format.Begin(&out);
    const std::string_view answer = kAnswer;
    for (size_t at = 0; at < answer.size();) {
      Chunk chunk;
      const size_t size = tokenizer::SequenceLength(static_cast<unsigned char>(answer[at]));
      chunk.text = answer.substr(at, size);
      chunk.tokens = {0};
      at += size;
      if (at == answer.size()) chunk.finish = FinishReason::kStop;
      format.Delta(0, chunk, &out);
    }
    format.End({.prompt_tokens = 5, .generated_tokens = 5}, &out);
    std::vector<Json> events;
    for (const std::string& event : Events(out)) events.push_back(Json::parse(event));
    return events;
  }

  server::ServedModel model_;
  server::StreamOptions stream_;
  server::ToolUse tools_;
};

TEST_F(XmlFormats, ResponsesHaveTheCall) {
  const auto format = server::ResponsesAnswer(model_, stream_, Json::object(), tools_);
  std::string arguments;
  const auto events = Write(*format);
  for (const Json& event : events) {
    if (event["type"] == "response.function_call_arguments.delta") {
      arguments += event["delta"].get<std::string>();
    }
  }
  EXPECT_EQ(arguments, R"({"city": "Zürich", "days": 3})");
  const Json& output = events.back()["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["content"][0]["text"], "Yes.");
  EXPECT_EQ(output[1]["name"], "get_weather");
  EXPECT_EQ(output[1]["arguments"], arguments);
}

TEST_F(XmlFormats, MessagesHaveTheCall) {
  const auto format = server::AnthropicAnswer(model_, stream_, tools_, 5, {});
  Write(*format);
  const Json whole = format->Whole({});
  ASSERT_EQ(whole["content"].size(), 2u);
  EXPECT_EQ(whole["content"][0]["text"], "Yes.");
  EXPECT_EQ(whole["content"][1]["name"], "get_weather");
  EXPECT_EQ(whole["content"][1]["input"], Json::parse(R"({"city": "Zürich", "days": 3})"));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
}

}  // namespace
}  // namespace litecache::testing
