#include "io/json.h"

#include <ctime>

#include "expect_error.h"
#include "temporary_directory.h"

namespace litecache::io {
namespace {

TEST(JsonTest, SaysWhereASyntaxErrorIs) {
  EXPECT_ERROR(ParseJson("{\n  \"a\": 1,\n  \"b\" 2\n}", "c.json"), FileError, "c.json:3:7",
               "not valid JSON");
  EXPECT_ERROR(ParseJson("", "c.json"), FileError, "c.json:1:1");
  EXPECT_ERROR(ParseJson("{\"a\": NaN}", "c.json"), FileError, "c.json:1:7");
  EXPECT_ERROR(ParseJson("{\"a\": 1e999}", "c.json"), FileError, "c.json", "1e999");
  EXPECT_ERROR(ParseJson("{} x", "c.json"), FileError, "c.json:1:4");
  EXPECT_ERROR(ParseJson("{\"a\": \"\xff\"}", "c.json"), FileError, "UTF-8");
}

TEST(JsonTest, DeepNestingIsRefused) {
  const std::string deep = std::string(1'000'000, '[');
  EXPECT_ERROR(ParseJson(deep, "deep"), FileError, "deep: it nests deeper than 128 levels");
  EXPECT_ERROR(ParseJson(deep + std::string(1'000'000, ']'), "deep"), FileError, "128 levels");
  EXPECT_EQ(Excerpt(ParseJson(std::string(128, '[') + std::string(128, ']'), "d")), "[...]");
}

// A second is a hundred times the normal duration; quadratic time would take minutes.
TEST(JsonTest, TimeIsProportionalToTheText) {
  const auto begun = std::clock();
  for (const char* element : {"{}", "[]", "0", "\"\""}) {
    std::string text = "[";
    for (int i = 0; i < 200'000; ++i) text += std::string(element) + ",";
    EXPECT_EQ(ParseJson(text + "0]", "wide").size(), 200'001u);
  }
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += fmt::format("\"k{}\":{},", i, i);
  keys += "\"k5\":-1}";
  JsonLimits limits;
  const auto value = ParseLimitedJson<nlohmann::ordered_json>(keys, &limits);
  EXPECT_EQ(value.size(), 100'000u);
  EXPECT_EQ(value.begin().key(), "k0");
  EXPECT_EQ(value["k5"], -1);
  EXPECT_ERROR(ParseJson(keys, "x", DuplicateKeys::kReject), FileError, "'k5' occurs twice");
  EXPECT_LT(static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC, 10);
}

TEST(JsonTest, LimitsOfTextsThatAreParsedOneAfterAnother) {
  using Json = nlohmann::ordered_json;
  JsonLimits limits{3, 10, 2};
  EXPECT_EQ(ParseLimitedJson<Json>("[[[1]]]", &limits).dump(), "[[[1]]]");
  EXPECT_EQ(limits.values, 6u);
  EXPECT_THROW(ParseLimitedJson<Json>("[[[[", &limits), JsonError);
  EXPECT_THROW(ParseLimitedJson<Json>(R"({"a":1,"b":2,"c":3})", &limits), JsonError);
  limits.values = 3;
  EXPECT_THROW(ParseLimitedJson<Json>("[1,2,3]", &limits), JsonError);
  EXPECT_EQ(limits.values, 0u);
  try {
    ParseLimitedJson<Json>(std::string(10'000, 'x'), &limits);
    FAIL();
  } catch (const JsonError& error) {
    EXPECT_FALSE(error.is_limit());
    EXPECT_LT(std::string_view(error.what()).size(), 300u);
  }
}

TEST(JsonTest, ValuesAreThoseOfTheLibrary) {
  for (const char* text :
       {"null", "true", "-1", "18446744073709551615", "1e-3", "\"a\\u00e9\\n\"", "[]", "{}",
        R"({"b":[1,{"a":null}],"a":{"z":1,"y":[]},"b2":0})", R"({"a":1,"b":2,"a":{"c":[3]}})"}) {
    JsonLimits limits;
    EXPECT_EQ(ParseLimitedJson<nlohmann::json>(text, &limits), nlohmann::json::parse(text));
    EXPECT_EQ(ParseLimitedJson<nlohmann::ordered_json>(text, &limits).dump(),
              nlohmann::ordered_json::parse(text).dump());
  }
}

TEST(JsonTest, DuplicateNames) {
  EXPECT_EQ(ParseJson(R"({"a":1,"a":2})", "x")["a"], 2);
  EXPECT_ERROR(ParseJson(R"({"a":1,"a":2})", "x", DuplicateKeys::kReject), FileError, "'a'",
               "twice");
  EXPECT_ERROR(ParseJson(R"({"o":{"b":{},"c":[{}],"b":2}})", "x", DuplicateKeys::kReject),
               FileError, "'b'");
  EXPECT_EQ(
      ParseJson(R"({"o":{"a":1},"p":{"a":1},"a":[{"a":2},{"a":3}]})", "x", DuplicateKeys::kReject)
          .size(),
      3u);
}

TEST(JsonTest, ReadsFiles) {
  const ::litecache::testing::TemporaryDirectory directory;
  EXPECT_EQ(ReadJsonFile(directory.Write("a.json", "[1, 2]")).size(), 2u);
  EXPECT_ERROR(ReadJsonFile(directory.path() / "b.json"), FileError, "b.json");
}

TEST(JsonTest, FieldsAreChecked) {
  const auto document = ParseJson(
      R"({"n":7,"big":18446744073709551615,"f":2.5,"whole":4096.0,"s":"x","t":true,"z":null,)"
      R"("list":[1,2],"bad":[1,"2"],"o":{"inner":-1}})",
      "c.json");
  const JsonFields fields(document, "c.json");
  EXPECT_EQ(fields.Int("n", 0, 10), 7);
  EXPECT_EQ(fields.Int("whole", 0, 5000), 4096);
  EXPECT_EQ(fields.Int("none", 0, 1), std::nullopt);
  EXPECT_EQ(fields.Int("z", 0, 1), std::nullopt);
  EXPECT_TRUE(fields.IsNull("z") && !fields.IsNull("none") && !fields.IsNull("n"));
  EXPECT_EQ(fields.Number("f", 0, 3), 2.5);
  EXPECT_EQ(fields.Number("n", 0, 10), 7.0);
  EXPECT_EQ(fields.Bool("t"), true);
  EXPECT_EQ(fields.String("s"), "x");
  EXPECT_EQ(fields.IntOrInts("n", 0, 9), std::vector<int64_t>{7});
  EXPECT_EQ(fields.IntOrInts("list", 0, 9), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(fields.IntOrInts("none", 0, 9).empty());
  EXPECT_EQ(fields.Object("o")->Int("inner", -1, 1), -1);
  EXPECT_FALSE(fields.Object("none").has_value());

  EXPECT_ERROR(fields.Int("n", 8, 10), FileError, "c.json: field 'n' = 7", "from 8 to 10");
  EXPECT_ERROR(fields.Int("big", 0, INT64_MAX), FileError, "18446744073709551615");
  EXPECT_ERROR(fields.Int("f", 0, 9), FileError, "'f' = 2.5", "integer");
  EXPECT_ERROR(fields.Int("s", 0, 9), FileError, "'s' = \"x\"");
  EXPECT_ERROR(fields.Int("t", 0, 9), FileError, "'t' = true");
  EXPECT_ERROR(fields.Number("s", 0, 9), FileError, "must be a number");
  EXPECT_ERROR(fields.Bool("n"), FileError, "must be true or false");
  EXPECT_ERROR(fields.String("n"), FileError, "must be a string");
  EXPECT_ERROR(fields.IntOrInts("bad", 0, 9), FileError, "must be integers");
  EXPECT_ERROR(fields.IntOrInts("list", 2, 9), FileError, "from 2 to 9");
  EXPECT_ERROR(fields.Object("n"), FileError, "field 'n' = 7: must be an object");
  EXPECT_ERROR(fields.Object("o")->Int("inner", 0, 1), FileError, "field 'o.inner' = -1");
  EXPECT_ERROR(fields.RequiredInt("none", 0, 9), FileError, "'none' is missing");
  EXPECT_ERROR(fields.RequiredNumber("z", 0, 9), FileError, "'z' is missing");
  EXPECT_ERROR(fields.Refuse("s", "why"), Unsupported, "'s' = \"x\" is not supported: why");
  EXPECT_ERROR(JsonFields(ParseJson("[1]", "l"), "l"), FileError, "must hold a JSON object");
}

}  // namespace
}  // namespace litecache::io
