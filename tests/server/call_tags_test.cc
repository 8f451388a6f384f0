// Calls with their arguments in tags, as GLM, MiniMax-M2 and Seed-OSS write them: taken apart in
// all pieces.
#include "server/api/call_tags.h"

#include <gmock/gmock.h>

#include "server/api/answer_parser.h"
#include "server/api/xml_calls.h"
#include "server/calls_testing.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::AnswerParser;
using server::CallTagsOf;
using server::CallTypes;
using server::Thinking;
using server::ToolEvent;
using server::ToolFormat;
using server::XmlCallParser;

class CallsInTags : public CallFormsTest {
 protected:
  std::string Parse(ToolFormat format, const Pieces& pieces) const override {
    return ParseAll(XmlCallParser(*CallTagsOf(format), types_, most_), pieces);
  }
  // The parser takes both forms of GLM's calls for either.
  void ExpectGlm(const std::string& answer, const std::string& expected) const {
    Expect(ToolFormat::kGlm45, answer, expected);
    Expect(ToolFormat::kGlm47, answer, expected);
  }
  void ExpectMiniMax(const std::string& answer, const std::string& expected) const {
    Expect(ToolFormat::kMiniMax, answer, expected);
  }
  // One argument of get_weather, as JSON, in every form without line breaks around values.
  void ExpectValue(const std::string& name, const std::string& value,
                   const std::string& json) const {
    const std::string expected = "|get_weather|{\"" + name + "\": " + json + "}";
    Expect(ToolFormat::kGlm45,
           "<tool_call>get_weather\n<arg_key>" + name + "</arg_key>\n<arg_value>" + value +
               "</arg_value>\n</tool_call>",
           expected);
    Expect(ToolFormat::kGlm47,
           "<tool_call>get_weather<arg_key>" + name + "</arg_key><arg_value>" + value +
               "</arg_value></tool_call>",
           expected);
    ExpectMiniMax("<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"" + name +
                      "\">" + value + "</parameter>\n</invoke>\n</minimax:tool_call>",
                  expected);
  }

  std::shared_ptr<const CallTypes> types_ =
      std::make_shared<const CallTypes>(server::TypesOfCalls(WeatherTools()));
};

TEST_F(CallsInTags, OfGlmStandBetweenText) {
  ExpectGlm("Hello <world>, a < b <", "Hello <world>, a < b <");
  const std::string both = "I look.|get_weather|{\"city\": \"Paris\", \"days\": 3}|ping|{}|";
  ExpectGlm(
      "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
      "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n"
      "</tool_call>\nDone. \n",
      both + "\nDone.");
  ExpectGlm(
      "I look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>ping</tool_call>Done.",
      both + "Done.");
  ExpectGlm(
      "<tool_call> get_weather <arg_key>city</arg_key> \n<arg_value>Paris</arg_value> \t"
      "</tool_call> ",
      "|get_weather|{\"city\": \"Paris\"}");
  // A function that is not offered is the client's to refuse.
  ExpectGlm("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call> So",
            "|f|{\"a\": \"1\"}| So");
}

TEST_F(CallsInTags, OfMiniMaxStandBetweenText) {
  ExpectMiniMax("Hello <world>, a < b <", "Hello <world>, a < b <");
  ExpectMiniMax(
      "I look.\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n"
      "<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">3</parameter>\n"
      "</invoke>\n<invoke name=\"ping\">\n</invoke>\n<invoke name=\"f\">\n"
      "<parameter name=\"a\">1</parameter>\n</invoke>\n</minimax:tool_call>\nDone. \n",
      "I look.|get_weather|{\"city\": \"Paris\", \"days\": 3}|ping|{}|f|{\"a\": \"1\"}|\nDone.");
  // Outside of the outer tags, only what is offered is a call.
  ExpectMiniMax("So: <invoke name=\"ping\"></invoke> <invoke name=\"f\"></invoke>",
                "So:|ping|{}| <invoke name=\"f\"></invoke>");
  ExpectMiniMax(
      "<minimax:tool_call><invoke name=\"get_weather\"><parameter name=\"city\">Rome</parameter>"
      "</minimax:tool_call><minimax:tool_call><invoke name=\"ping\"></minimax:tool_call>",
      "|get_weather|{\"city\": \"Rome\"}|ping|{}");
  for (const std::string text :
       {"<minimax:tool_call> is a tag", "<minimax:tool_call>\n<invoke name=\"\">",
        "<minimax:tool_call><invoke name=\"a b\">", "<invoke name=ping>", "<invoke name=\"ping\"",
        "<invoke name=\"int\"></invoke>", "<tool_call>ping</tool_call>"}) {
    ExpectMiniMax(text, text);
  }
  // What is between parameters, or is none.
  ExpectMiniMax(
      "<invoke name=\"get_weather\"> hm <b> <parameter name=\"\"> <parameter name=\"a\nb\">"
      "<parameter name=\"a>\"><parameter name=\"city\">x</parameter> </invoke>",
      "|get_weather|{\"city\": \"x\"}");
}

TEST_F(CallsInTags, OfSeedStandBetweenText) {
  Expect(
      ToolFormat::kSeed,
      "I look.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>New\nYork\n</parameter>"
      "\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
      "<function=ping>\n</function>\n</seed:tool_call>\nDone. \n",
      "I look.|get_weather|{\"city\": \"New\\nYork\\n\", \"days\": 3}|ping|{}|\nDone.");
  for (const std::string text :
       {"<seed:tool_call> is a tag", "<tool_call>\n<tool_call>", "<seed:tool_call>\n{\"name\""}) {
    ExpectText(ToolFormat::kSeed, text);
  }
}

TEST_F(CallsInTags, ValuesMayBeWrittenAsInPython) {
  const auto expect = [&](const std::string& value, const std::string& json) {
    ExpectValue("where", value, json);
    ExpectValue("tags", value, json);
  };
  expect("{'lat': 1.5, \"b's\": [None, True, (), (-2e5,)],}",
         R"({"lat": 1.5, "b's": [null, true, [], [-2e5]]})");
  expect(R"(['\'', "\n\\n\u00e9\x41\q\U0001F600"])", R"(["'", "\n\\néA\\q😀"])");
  // What Python would not read is a string.
  for (const std::string text : {"['a'", "['a' 'b']", "[a]", "{1: 2}", "{'a'}", "[1,,2]", "['\n']",
                                 "['\\ud800']", "[1] 2", "[inf]", "[", "{", "("}) {
    ExpectValue("where", text, Json(text).dump());
  }
  const std::string deep = std::string(200, '[') + "'a'" + std::string(200, ']');
  ExpectValue("where", deep, Json(deep).dump());
}

TEST_F(CallsInTags, ValuesAreWhatStandsBetweenTheirTags) {
  for (const auto& [value, json] : std::vector<std::pair<std::string, std::string>>{
           {"", R"("")"},
           {"\n", R"("\n")"},
           {"\na\n b\r\n\n", R"("\na\n b\u000d\n\n")"},
           {" 5 ", R"(" 5 ")"},
           {"null", R"("null")"},
           {"Zürich ☀", R"("Zürich ☀")"},
           {"\"q\" \\n\t", R"("\"q\" \\n\u0009")"},
           {"x < y </b> </arg_valu </paramete", R"("x < y </b> </arg_valu </paramete")"},
           {"a</arg_value>b", R"("a</arg_value>b")"},
           {"a</parameter>b", R"("a</parameter>b")"},
           {"a\n</arg_value>\n\nb</parameter>\n\n", R"("a\n</arg_value>\n\nb</parameter>\n\n")"},
           {"</tool_call></invoke></minimax:tool_call>",
            R"("</tool_call></invoke></minimax:tool_call>")"},
           {"<arg_key>days</arg_key><parameter name=\"days\">",
            R"("<arg_key>days</arg_key><parameter name=\"days\">")"}}) {
    ExpectValue("city", value, json);
    ExpectValue("odd", value, json);
    ExpectValue("unknown", value, json);
  }
  ExpectValue("days", "3", "3");
  ExpectValue("days", "\n 3 \n", "3");
  ExpectValue("days", "three", "\"three\"");
  ExpectValue("exact", "true", "true");
  ExpectValue("exact", "False", "false");
  ExpectValue("where", "{\"lat\": 1.50,\n \"name\": \"</b>\"}",
              "{\"lat\": 1.50,\n \"name\": \"</b>\"}");
  ExpectValue("tags", "[\"</arg_value>\", \"</parameter>\"]",
              "[\"</arg_value>\", \"</parameter>\"]");
  ExpectValue("unit", "null", "null");
  ExpectValue("unit", "C", "\"C\"");
  ExpectValue("limit", "5.5", "5.5");
  ExpectValue("any", "five", "\"five\"");
  ExpectValue("note", "1", "\"1\"");
}

TEST_F(CallsInTags, TagsMayBeMissing) {
  const std::string city = "<arg_key>city</arg_key><arg_value>Paris</arg_value>";
  const std::string call = "|get_weather|{\"city\": \"Paris\"}";
  ExpectGlm("<tool_call>get_weather" + city + "<tool_call>ping</tool_call>", call + "|ping|{}");
  ExpectGlm("<tool_call>ping\n<tool_call>ping</tool_call>", "|ping|{}|ping|{}");
  // What is between parameters, or is none.
  ExpectGlm("<tool_call>get_weather<arg_key>a</arg_key> hm <b> " + city +
                " <arg_key></arg_key><arg_value>1</arg_value><arg_key>a\nb</arg_key></tool_call>",
            call);
  // A second value.
  ExpectGlm("<tool_call>get_weather" + city +
                "<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
            call);
}

TEST_F(CallsInTags, WhatIsNoneIsText) {
  for (const std::string text :
       {"<tool_call> is a tag", "<tool_call></tool_call>", "<tool_call>ping",
        "<tool_call>ping pong</tool_call>", "<tool_call>f\n", "<tool_call><b>ping</b>",
        "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
        "<tool_call>{\"name\":\"ping\"}</tool_call>", "<function=ping></function>", " \n", ""}) {
    ExpectGlm(text, text);
  }
  const std::string longest(128, 'n');
  ExpectGlm("<tool_call>" + longest + "</tool_call>", "|" + longest + "|{}");
  ExpectGlm("<tool_call>" + longest + "n</tool_call>", "<tool_call>" + longest + "n</tool_call>");
  ExpectGlm("<tool_call>\n<tool_call>\nping\n</tool_call>", "<tool_call>|ping|{}");
}

TEST_F(CallsInTags, MayBeCutOff) {
  const auto expect = [&](ToolFormat format, const std::string& answer, const std::string& end,
                          const std::string& expected) {
    Expect(format, answer.substr(0, answer.find(end) + end.size()), expected);
  };
  const auto glm = [&](const std::string& end, const std::string& expected) {
    expect(ToolFormat::kGlm45,
           "Hm\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
           "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
           end, expected);
  };
  glm("<tool_", "Hm\n<tool_");
  glm("get_weather", "Hm\n<tool_call>get_weather");
  glm("get_weather\n", "Hm|get_weather|");
  glm("get_weather\n<arg_", "Hm|get_weather|");
  glm("<arg_key>ci", "Hm|get_weather|");
  glm("city</arg_key>\n<arg_val", "Hm|get_weather|");
  glm("<arg_value>", "Hm|get_weather|{\"city\": \"");
  glm("Paris</arg_", "Hm|get_weather|{\"city\": \"Paris");
  glm("Paris</arg_value>", "Hm|get_weather|{\"city\": \"Paris\"");
  glm("<arg_value>3", "Hm|get_weather|{\"city\": \"Paris\"");
  glm("3</arg_value>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3");
  glm("</tool_call>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3}");
  const auto minimax = [&](const std::string& end, const std::string& expected) {
    expect(ToolFormat::kMiniMax,
           "Hm\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris"
           "</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
           end, expected);
  };
  minimax("<minimax:tool_call>", "Hm\n<minimax:tool_call>");
  minimax("get_weather\"", "Hm\n<minimax:tool_call>\n<invoke name=\"get_weather\"");
  minimax("get_weather\">", "Hm|get_weather|");
  minimax("city\"", "Hm|get_weather|");
  minimax("city\">", "Hm|get_weather|{\"city\": \"");
  minimax("Paris</para", "Hm|get_weather|{\"city\": \"Paris");
  minimax("Paris</parameter>", "Hm|get_weather|{\"city\": \"Paris\"");
  minimax("3</parameter>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3");
  minimax("</invoke>", "Hm|get_weather|{\"city\": \"Paris\", \"days\": 3}");
}

TEST_F(CallsInTags, BeyondTheLimitAreDropped) {
  most_ = 1;
  ExpectGlm(
      "a<tool_call>ping</tool_call>b<tool_call>get_weather<arg_key>city</arg_key><arg_value>x"
      "</arg_value></tool_call>c",
      "a|ping|{}|bc");
  ExpectMiniMax(
      "a<minimax:tool_call><invoke name=\"ping\"></invoke><invoke name=\"f\"><parameter name=\"a\">"
      "1</parameter></invoke></minimax:tool_call>c",
      "a|ping|{}|c");
}

TEST_F(CallsInTags, ComeAsTheyAreWritten) {
  XmlCallParser parser(*CallTagsOf(ToolFormat::kGlm45), types_, 1);
  const auto add = [&](std::string_view piece) {
    std::vector<ToolEvent> events;
    parser.Add(piece, &events);
    return Joined(events);
  };
  EXPECT_EQ(add("Yes <b"), "Yes <b");
  EXPECT_EQ(add(".\n<tool_call>get_weather\n"), ".");
  EXPECT_EQ(add("<arg_key>"), "|get_weather|");
  EXPECT_EQ(add("city</arg_key>\n<arg_value>"), "{\"city\": \"");
  EXPECT_EQ(add("\nNew "), "\\nNew ");
  EXPECT_EQ(add("York\n"), "York\\n");
  EXPECT_EQ(add("City</arg_"), "City");
  EXPECT_EQ(add("value>\n"), "");
  EXPECT_EQ(add("<arg_key>days</arg_key>\n<arg_value>"), "\"");
  EXPECT_EQ(add("1"), "");
  EXPECT_EQ(add("</arg_value>\n"), "");
  EXPECT_EQ(add("</tool_call>"), ", \"days\": 1}");
}

TEST_F(CallsInTags, StandBehindThoughts) {
  const auto expect = [&](ToolFormat format, Thinking thinking, const std::string& answer,
                          const std::string& expected) {
    const auto parse = [&](const Pieces& pieces) {
      AnswerParser parser(std::make_unique<server::TaggedAnswer>(
          thinking, server::ThinkTags(),
          std::make_unique<XmlCallParser>(*CallTagsOf(format), types_, most_)));
      std::vector<ToolEvent> events;
      for (size_t i = 0; i < pieces.size(); ++i) {
        Chunk chunk;
        chunk.text = pieces[i];
        if (i + 1 == pieces.size()) chunk.finish = FinishReason::kStop;
        for (ToolEvent& event : parser.Take(chunk)) events.push_back(std::move(event));
      }
      return Joined(events);
    };
    ExpectForEveryCut(answer, parse, expected);
  };
  expect(ToolFormat::kGlm45, Thinking::kMaybe,
         "\n<think>I <tool_call>ping</tool_call> it.</think>\nSo:\n<tool_call>ping\n</tool_call>",
         "(I <tool_call>ping</tool_call> it.)So:|ping|{}");
  expect(ToolFormat::kGlm47, Thinking::kOpen, "It.</think><tool_call>ping</tool_call>",
         "(It.)|ping|{}");
  expect(ToolFormat::kMiniMax, Thinking::kOpen,
         "It.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"ping\">\n</invoke>\n"
         "</minimax:tool_call>",
         "(It.)|ping|{}");
}

TEST_F(CallsInTags, DoNotDependOnThePieces) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "<arg_key>",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<minimax:tool_call>",
                                          "</minimax:tool_call>",
                                          "<invoke name=\"",
                                          "\">",
                                          "</invoke>",
                                          "<parameter name=\"",
                                          "</parameter>",
                                          "<function=",
                                          "<parameter=",
                                          "</function>",
                                          ">",
                                          "<",
                                          "\"",
                                          "</",
                                          "ping",
                                          "get_weather",
                                          "city",
                                          "days",
                                          "3",
                                          " ",
                                          "\n",
                                          "é",
                                          std::string(130, 'y')};
  auto random = TestRandom(64);
  ExpectForRandomAnswers(CallTemplates(), random,
                         [&](const CallTemplate&) { return parts[random() % parts.size()]; });
}

TEST_F(CallsInTags, TakeTimeInProportionToTheirLength) {
  const auto repeat = [](const std::string& text) {
    std::string repeated;
    while (repeated.size() < 4'000'000) repeated += text;
    return repeated;
  };
  const std::string call = "<tool_call>get_weather<arg_key>";
  const std::string city = call + "city</arg_key><arg_value>";
  ExpectProportionalTime(
      ToolFormat::kGlm47,
      {repeat("<tool_call>"), repeat("<tool_call>p"), "<tool_call>p" + repeat(" "),
       "<tool_call>" + repeat("p"), call + repeat("n"), call + "city</arg_key>" + repeat(" "),
       city + repeat("</arg_value>"), city + repeat("\n"), city + "</arg_value>" + repeat(" "),
       repeat("<tool_call>ping</tool_call> ")});
}

}  // namespace
}  // namespace litecache::testing
