// Arguments of calls in tags.
#include "grammar/parameter_tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "grammar/grammar.h"
#include "grammar/grammar_testing.h"

namespace litecache::grammar {
namespace {

// Whether a call of a function with this schema may have the text as its arguments in tags.
bool AcceptsTags(const Grammar& grammar, const std::string& text) {
  return Accepts(grammar, "<f>\n" + text + "</f>");
}

constexpr ParameterTags kLines = {.name = "<parameter=",
                                  .name_end = ">",
                                  .end = "</parameter>",
                                  .lines = true,
                                  .separator = "\n"};

std::shared_ptr<Grammar> OfTags(const std::string& schema, const ParameterTags& tags = kLines) {
  Frames frames;
  frames.any = {{"<f>\n", Json::parse(schema), "</f>"}};
  frames.form.tags = tags;
  return Grammar::OfFrames(frames, ByteVocabulary());
}

std::string Tag(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(ParameterTags, HoldArguments) {
  const auto grammar = OfTags(R"({"type": "object", "required": ["city", "days"], "properties": {
      "city": {"type": "string"}, "unit": {"enum": ["C", "F", null, 1]},
      "days": {"type": "integer", "minimum": 1, "maximum": 14},
      "where": {"$ref": "#/$defs/place"}, "note": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
      "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}}}})");
  const std::string city = Tag("city", "Paris"), days = Tag("days", "3");
  const auto accepts = [&](const std::string& text) { return AcceptsTags(*grammar, text); };
  EXPECT_TRUE(accepts(city + days));
  EXPECT_TRUE(accepts(city + Tag("unit", "C") + days + Tag("where", "{\"lat\": 1.5}")));
  EXPECT_TRUE(accepts(city + Tag("unit", "null") + days + Tag("note", "null")));
  EXPECT_TRUE(accepts(city + Tag("unit", "1") + days + Tag("note", "")));
  for (const char* text : {"", "\n", "\n\n", "a\nb\n\n c\t", "</paramete>", "a < b </p", "\"q\\",
                           "<parameter=days>\n3", "Zürich \u2600", "</function>\n</tool_call>"}) {
    EXPECT_TRUE(accepts(Tag("city", text) + days)) << text;
  }
  for (const char* text : {"a</parameter>b", "</parameter>", "\n</parameter>\n", "\xFF", "\xC3"}) {
    EXPECT_FALSE(accepts(Tag("city", text) + days)) << text;
  }
  EXPECT_FALSE(accepts(""));
  EXPECT_FALSE(accepts(city));
  EXPECT_FALSE(accepts(days + city));
  EXPECT_FALSE(accepts(city + city + days));
  EXPECT_FALSE(accepts(city + days + Tag("more", "1")));
  EXPECT_FALSE(accepts(city + Tag("days", "15")));
  EXPECT_FALSE(accepts(city + Tag("days", "\"3\"")));
  EXPECT_FALSE(accepts(city + Tag("unit", "\"C\"") + days));
  EXPECT_FALSE(accepts(city + days + Tag("where", "{\"lon\": 1}")));
}

TEST(ParameterTags, StringsKeepTheirLimits) {
  const auto grammar = OfTags(R"({"properties": {"a": {"type": "string", "minLength": 2,
      "maxLength": 14}, "b": {"pattern": "^[^x]*$"}, "c": {"type": "string", "format": "date"}}})");
  const auto accepts = [&](const std::string& text) { return AcceptsTags(*grammar, text); };
  EXPECT_TRUE(accepts(""));
  for (const char* text : {"ab", "\u00e9\u2600", "</parameter", "123456789\n1234"}) {
    EXPECT_TRUE(accepts(Tag("a", text))) << text;
  }
  for (const char* text : {"a", "\u2600", "</parameter>", "123456789012345"}) {
    EXPECT_FALSE(accepts(Tag("a", text))) << text;
  }
  EXPECT_TRUE(accepts(Tag("b", "one\n</parameter\n>") + Tag("c", "2024-02-28")));
  for (const char* text : {"x", "a\n</parameter>", "</parameter>\n<b>"}) {
    EXPECT_FALSE(accepts(Tag("b", text))) << text;
  }
  EXPECT_FALSE(accepts(Tag("c", "2024-02-30")));
  // Alternatives of all arguments, and none.
  const auto either = OfTags(R"({"anyOf": [{"required": ["a"], "properties": {"a": {"const": 1}}},
      {"required": ["b"], "properties": {"b": true}}, {"type": "string"}]})");
  EXPECT_TRUE(AcceptsTags(*either, Tag("a", "1")));
  EXPECT_TRUE(AcceptsTags(*either, Tag("b", "[1")));
  EXPECT_FALSE(AcceptsTags(*either, Tag("a", "1") + Tag("b", "2")));
  EXPECT_FALSE(AcceptsTags(*either, ""));
  EXPECT_TRUE(AcceptsTags(*OfTags(R"({"type": "object"})"), ""));
  EXPECT_TRUE(AcceptsTags(*OfTags("true"), ""));
}

TEST(ParameterTags, MayStandAroundNames) {
  constexpr ParameterTags kKeys = {.name = "<key>",
                                   .name_end = "</key>",
                                   .value = "<value>",
                                   .end = "</value>",
                                   .separator = "\n"};
  const std::string schema = R"({"required": ["a"], "properties": {
      "a": {"type": "string", "maxLength": 8}, "b": {"enum": ["x", "</value>", 1]}, "c": {"type": "array"}}})";
  const auto lines = OfTags(schema, kKeys);
  const std::string a = "<key>a</key>\n<value>\n</b> \n</value>\n";
  for (const std::string& text :
       {a, a + "<key>b</key>\n<value>x</value>\n<key>c</key>\n<value>[\"</value>\"]</value>\n",
        std::string("<key>a</key>\n<value></parame</value>\n<key>b</key>\n<value>1</value>\n")}) {
    EXPECT_TRUE(AcceptsTags(*lines, text)) << text;
  }
  for (const char* text :
       {"", "<key>a</key><value>x</value>\n", "<key>a</key>\n<value>x</value>",
        "<key>a</key>\n<value>123456789</value>\n", "<key>a</key>\n<value></value></value>\n",
        "<key>b</key>\n<value>1</value>\n"}) {
    EXPECT_FALSE(AcceptsTags(*lines, text)) << text;
  }
  EXPECT_FALSE(AcceptsTags(*lines, a + "<key>b</key>\n<value></value></value>\n"));
  // On one line.
  ParameterTags dense = kKeys;
  dense.separator = "";
  EXPECT_TRUE(AcceptsTags(*OfTags(schema, dense),
                          "<key>a</key><value>x\n</value><key>b</key><value>1</value>"));
  EXPECT_FALSE(AcceptsTags(*OfTags(schema, dense), a));
}

TEST(ParameterTags, WhatTheyCannotHoldIsNamed) {
  const auto expect = [](const std::string& schema, const std::string& path,
                         const ParameterTags& tags = kLines) {
    try {
      OfTags(schema, tags);
      ADD_FAILURE() << schema << " was taken";
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith(path + ":"));
    }
  };
  for (const std::string name : {"", "a>b", "<a", "a\nb"}) {
    expect(Json({{"properties", {{name, Json::object()}}}}).dump(), "#/properties/" + name);
  }
  // A quote ends a name in quotes, and no other.
  const std::string quoted = R"({"properties": {"a\"b": {}}})";
  EXPECT_TRUE(AcceptsTags(*OfTags(quoted), Tag("a\"b", "1")));
  expect(quoted, "#/properties/a\"b",
         {.name = "<parameter name=\"", .name_end = "\">", .end = "</parameter>"});
  expect(R"({"const": {"a": 1}})", "#");
  expect(R"({"type": "object", "minProperties": 1})", "#");
  expect(R"({"properties": {"a": {}, "b": {}}, "maxProperties": 1})", "#");
}

}  // namespace
}  // namespace litecache::grammar
