// Calls as OLMo 3 writes them: taken apart in all pieces.
#include "server/api/python_calls.h"

#include <gmock/gmock.h>

#include "server/calls_testing.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::PythonCallParser;

std::string ParsePython(const Pieces& pieces, int most = 10) {
  return ParseAll(PythonCallParser(most), pieces);
}

void ExpectPython(const std::string& answer, const std::string& expected, int most = 10) {
  ExpectForEveryCut(
      answer, [&](const Pieces& pieces) { return ParsePython(pieces, most); }, expected);
}

TEST(PythonCalls, StandBetweenText) {
  ExpectPython("Hello <function> f(x) <function_calls", "Hello <function> f(x) <function_calls");
  ExpectPython(
      "I look.\n<function_calls>\nget_weather(city=\"Paris\", days=3)\nping()\n</function_calls>\n"
      "Done. ",
      "I look.|get_weather|{\"city\": \"Paris\", \"days\": 3}|ping|{}|\nDone.");
  ExpectPython("<function_calls>a.b-c( x = 1 ,)</function_calls><function_calls>f()",
               "|a.b-c|{\"x\": 1}|f|{}");
  ExpectPython("<function_calls>f()\ng(x=1)</function_calls>c", "|f|{}|c", 1);
}

TEST(PythonCalls, ValuesAreJsonOrPythons) {
  const auto expect = [](const std::string& value, const std::string& json) {
    ExpectPython("<function_calls>f(a=" + value + ", b=1)</function_calls>",
                 "|f|{\"a\": " + json + ", \"b\": 1}");
  };
  expect(R"("a\"),]}\u00e9")", R"("a\"),]}\u00e9")");
  expect(R"('it"s \' x')", R"("it\"s ' x")");
  expect("[1, {\"x\": [true, null]}, \")\"]", "[1, {\"x\": [true, null]}, \")\"]");
  expect("{'x': (None, False)}", "{\"x\": [null, false]}");
  expect("-2.5e3", "-2.5e3");
  expect("True", "true");
  expect("New York", "\"New York\"");
}

TEST(PythonCalls, MayBeCutOff) {
  const std::string call = "Hm <function_calls>f(ab=\"xy\", c=[1, 2])</function_calls>";
  const auto expect = [&](const std::string& end, const std::string& expected) {
    ExpectPython(call.substr(0, call.find(end) + end.size()), "Hm" + expected);
  };
  expect("<function_calls>", " <function_calls>");
  expect("calls>f", " <function_calls>f");
  expect("f(", "|f|");
  expect("(a", "|f|");
  expect("ab=", "|f|{\"ab\": ");
  expect("xy\"", "|f|{\"ab\": ");
  expect("xy\",", "|f|{\"ab\": \"xy\"");
  expect("2])", "|f|{\"ab\": \"xy\", \"c\": [1, 2]}");
  expect("</func", "|f|{\"ab\": \"xy\", \"c\": [1, 2]}|</func");
}

TEST(PythonCalls, WhatIsNoneIsText) {
  for (const std::string text :
       {"<function_calls> is a tag", "<function_calls></function_calls>", "<function_calls>\n(x)",
        "<function_calls>{\"name\": \"f\"}", "<function_calls>f g()", " \n", ""}) {
    ExpectPython(text, text);
  }
  ExpectPython("<function_calls>f(1, 2)</function_calls>", "|f||1, 2)</function_calls>");
  ExpectPython("<function_calls>f()\nSo (it is)", "|f|{}|\nSo (it is)");
}

TEST(PythonCalls, DoNotDependOnThePieces) {
  const std::vector<std::string> parts = {"<function_calls>",
                                          "</function_calls>",
                                          "f(",
                                          "a=",
                                          ")",
                                          "(",
                                          ",",
                                          "\"",
                                          "'",
                                          "\\",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "1",
                                          "None",
                                          " ",
                                          "\n",
                                          "é",
                                          ":",
                                          std::string(150, 'y')};
  auto random = TestRandom(67);
  for (int i = 0; i < 5000; ++i) {
    std::string answer = i % 2 == 0 ? "<function_calls>f(a=" : "";
    for (size_t count = random() % 16; count > 0; --count) answer += parts[random() % parts.size()];
    ExpectForRandomCuts(answer, random, [](const Pieces& pieces) { return ParsePython(pieces); });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::testing
