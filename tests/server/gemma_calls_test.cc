// Calls as Gemma 4 writes them: taken apart in all pieces.
#include "server/api/gemma_calls.h"

#include <gmock/gmock.h>

#include "server/calls_testing.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using server::GemmaCallParser;

std::string ParseGemma(const Pieces& pieces, int most = 10) {
  return ParseAll(GemmaCallParser(most), pieces);
}

void ExpectGemma(const std::string& answer, const std::string& expected, int most = 10) {
  ExpectForEveryCut(
      answer, [&](const Pieces& pieces) { return ParseGemma(pieces, most); }, expected);
}

TEST(GemmaCalls, StandBetweenText) {
  ExpectGemma("Hello <|tool> a < b <|", "Hello <|tool> a < b <|");
  ExpectGemma(
      "I look.\n<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>"
      "call:ping{}<tool_call|>\nDone. ",
      "I look.|get_weather|{\"city\": \"Paris\", \"days\": 3}|ping|{}|\nDone.");
  ExpectGemma("<|tool_call>\ncall: a.b-c {} \n<tool_call|>\n", "|a.b-c|{}");
  ExpectGemma("a<|tool_call>call:f{}<tool_call|>b<|tool_call>call:g{x:1}<tool_call|>c", "a|f|{}|bc",
              1);
  ExpectGemma("<|tool_call>call:f{}<|tool_call>call:g{}.", "|f|{}|g|{}|.");
}

TEST(GemmaCalls, ArgumentsBecomeJson) {
  const auto expect = [](const std::string& written, const std::string& json) {
    ExpectGemma("<|tool_call>call:f" + written + "<tool_call|>", "|f|" + json);
  };
  expect(R"({a:<|"|><|"|>,b:[],c:{},d:[{},[1,-2.5e3]]})",
         R"({"a": "", "b": [], "c": {}, "d": [{}, [1, -2.5e3]]})");
  expect("{t:true,f:false,n:null,N:None,T:True}",
         R"({"t": true, "f": false, "n": null, "N": null, "T": true})");
  expect("{a:<|\"|>x\"y\\{},:[ <| <|\" é <|\"|>,the thing:<|\"|>\n\t<|\"|>}",
         R"({"a": "x\"y\\{},:[ <| <|\" é ", "the thing": "\n\u0009"})");
  expect(R"( { <|"|>q"<|"|> : 1 , b : [ true , <|"|>x<|"|> ] , } )",
         R"({"q\"": 1, "b": [true, "x"]})");
  // Words that are no values, and other quotes.
  expect(R"({city:New York,a:"b",c:'d'})", R"({"city": "New York", "a": "b", "c": "d"})");
}

TEST(GemmaCalls, MayBeCutOff) {
  const std::string call = R"(Hm <|tool_call>call:f{a:<|"|>xy<|"|>,b:[12,{c:true}]}<tool_call|>)";
  const auto expect = [&](const std::string& end, const std::string& expected) {
    ExpectGemma(call.substr(0, call.find(end) + end.size()), "Hm" + expected);
  };
  expect("<|tool_", " <|tool_");
  expect("call:f", " <|tool_call>call:f");
  expect("{", "|f|{");
  expect("{a:<|", R"(|f|{"a": )");
  expect(R"(xy<|")", R"(|f|{"a": "xy)");
  expect(R"(xy<|"|>,b)", R"(|f|{"a": "xy")");
  expect("[12", R"(|f|{"a": "xy", "b": [)");
  expect("12,", R"(|f|{"a": "xy", "b": [12)");
  expect("]}", R"(|f|{"a": "xy", "b": [12, {"c": true}]})");
  expect("}<tool_ca", R"(|f|{"a": "xy", "b": [12, {"c": true}]})");
}

TEST(GemmaCalls, WhatIsNoneIsText) {
  for (const std::string text :
       {"<|tool_call> is a tag", "<|tool_call>call:{}", "<|tool_call>call:a b{}",
        "<|tool_call>{\"name\": \"f\"}", "<|tool_call>call:f(x)", " \n", ""}) {
    ExpectGemma(text, text);
  }
  const std::string longest = "<|tool_call>call:" + std::string(1100, 'n') + "{}";
  EXPECT_EQ(ParseGemma({longest}), longest);
  // The rest behind what cannot be arguments.
  ExpectGemma("<|tool_call>call:f{a:1]} b", R"(|f|{"a": 1|]} b)");
  ExpectGemma("<|tool_call>call:f{a}", "|f|{|a}");
  ExpectGemma("<|tool_call>call:f{a:[1}", R"(|f|{"a": [1|})");
  ExpectGemma("<|tool_call>call:f{a:,b", R"(|f|{"a": |,b)");
}

TEST(GemmaCalls, DoNotDependOnThePieces) {
  const std::vector<std::string> parts = {"<|tool_call>",
                                          "<tool_call|>",
                                          "<|tool_call>call:f{",
                                          "<|\"|>",
                                          "<|",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ":",
                                          ",",
                                          "a",
                                          "1",
                                          "true",
                                          " ",
                                          "\n",
                                          "\\",
                                          "\"",
                                          "é",
                                          "a:",
                                          std::string(600, 'y')};
  auto random = TestRandom(66);
  for (int i = 0; i < 5000; ++i) {
    std::string answer = i % 2 == 0 ? "<|tool_call>call:f{" : "";
    for (size_t count = random() % 16; count > 0; --count) answer += parts[random() % parts.size()];
    ExpectForRandomCuts(answer, random, [](const Pieces& pieces) { return ParseGemma(pieces); });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace litecache::testing
