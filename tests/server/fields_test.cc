// Fields that the server does not know, or knows and has no use for: ignored and logged, or refused
// with --strict-fields.
#include "server/api/fields.h"

#include <gmock/gmock.h>

#include <limits>

#include "logged.h"
#include "server/test_server.h"

namespace litecache::testing {
namespace {

using server::Fields;
using server::StrictFields;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Ignored(const Json& object, const std::string& prefix = "") {
  return Logged([&] { Fields(object, prefix).Finish(); });
}

TEST(Fields, AnUnknownOneIsLoggedOnceByName) {
  EXPECT_THAT(
      Ignored({{"surprise", 1}, {"unset", nullptr}}),
      AllOf(HasSubstr("'surprise'"), HasSubstr("--strict-fields"), Not(HasSubstr("unset"))));
  EXPECT_EQ(Ignored({{"surprise", 2}}), "");
  // A list's element is like any other.
  EXPECT_THAT(Ignored({{"odd", 1}}, "messages[3].content[0]."),
              HasSubstr("'messages[].content[].odd'"));
  EXPECT_EQ(Ignored({{"odd", 1}}, "messages[12].content[5]."), "");
}

TEST(Fields, ANameCannotWriteIntoTheLog) {
  const std::string log = Ignored({{"a\nb\x1b[31m\xc2\x9b", 1}});
  EXPECT_THAT(log, HasSubstr("'a\\x0ab\\x1b[m\\xc2\\x9b'"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
  EXPECT_LT(Ignored({{std::string(1 << 20, 'x'), 1}}).size(), 1000u);
}

TEST(Fields, StrictOnThisThreadAlone) {
  const Json object = {{"strange", 1}};
  {
    const StrictFields strict(true);
    EXPECT_THROW(Fields(object).Finish(), server::ApiError);
    const StrictFields lenient(false);
    EXPECT_NO_THROW(Fields(object).Finish());
  }
  EXPECT_FALSE(StrictFields::On());
}

// As JSON schemas have it: what is sent by languages with one type of number.
TEST(Fields, AWholeNumberIsAnInteger) {
  const auto read = [](const Json& value, int64_t low, int64_t high) {
    return Fields(Json{{"n", value}}, "a.").Int("n", low, high);
  };
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(read(5.0, 0, 10), 5);
  EXPECT_EQ(read(-0.0, 0, 10), 0);
  EXPECT_EQ(read(-3.0, -3, 10), -3);
  EXPECT_EQ(read(9007199254740992.0, 0, kLargest), int64_t{1} << 53);
  EXPECT_EQ(read(uint64_t{1} << 63, 0, kLargest), kLargest);
  EXPECT_EQ(read(nullptr, 0, 10), std::nullopt);
  for (const Json& bad : {Json(5.5), Json(11.0), Json(-1.0), Json(1e300), Json(1e16), Json("5"),
                          Json(true), Json(11), Json(uint64_t{1} << 63)}) {
    EXPECT_THROW(read(bad, 0, 10), server::ApiError) << bad;
  }
  EXPECT_THROW(read(1e16, 0, kLargest), server::ApiError);  // its last digits may be missing
  EXPECT_EQ(Fields(Json{{"n", {7, 8.0}}}).Ids("n"), (std::vector<int32_t>{7, 8}));
  EXPECT_THROW(Fields(Json{{"n", {7, 8.5}}}).Ids("n"), server::ApiError);
}

Json HarmlessFields() {
  return {{"cache_prompt", true},
          {"request_id", "a"},
          {"max_tokens", -1},
          {"id_slot", -1},
          {"service_tier", "flex"},
          {"priority", 3},
          {"stream_options", {{"include_usage", true}}}};
}

TEST(Fields, HarmlessOnesChangeNothing) {
  TestServer server;
  Json body = ChatBody("x", {{"temperature", 0}});
  const Json plain = server.Ask("/v1/chat/completions", body)["choices"];
  body.update(HarmlessFields());
  body.update({{"store", true},
               {"verbosity", "low"},
               {"reasoning_effort", "high"},
               {"prediction", {{"type", "content"}, {"content", "x"}}}});
  body["messages"][0]["cache_control"] = {{"type", "ephemeral"}};
  EXPECT_EQ(server.Ask("/v1/chat/completions", body)["choices"], plain);
  Json completion = {{"prompt", "x"}};
  completion.update(HarmlessFields());
  server.Ask("/v1/completions", completion);
  server.Ask("/v1/responses", {{"input", "x"}, {"max_output_tokens", -1}, {"store", true}});
}

TEST(Fields, EachIsRefusedWhereAsked) {
  TestServer::Options options;
  options.server.service.strict_fields = true;
  TestServer server(options);
  const auto refused = [&](const char* path, Json body, const Json& more) {
    body.update(more);
    const Json error = server.ExpectError(path, body, 400, "");
    return error["code"].get<std::string>() + " " + error["param"].get<std::string>();
  };
  const auto chat = [&](const Json& more) {
    return refused("/v1/chat/completions", ChatBody("x"), more);
  };
  EXPECT_EQ(chat({{"frobnicate", 1}}), "unknown_parameter frobnicate");
  EXPECT_EQ(chat({{"store", true}}), "unsupported_parameter store");
  EXPECT_EQ(chat({{"reasoning_effort", "high"}}), "unsupported_parameter reasoning_effort");
  EXPECT_EQ(chat({{"max_tokens", -1}}), "invalid_value max_tokens");
  EXPECT_EQ(chat({{"stream_options", {{"include_usage", true}}}}),
            "unsupported_parameter stream_options");
  EXPECT_EQ(chat({{"stream", true}, {"stream_options", {{"surprise", 1}}}}),
            "unknown_parameter stream_options.surprise");
  const auto response = [&](const Json& more) {
    return refused("/v1/responses", {{"input", "x"}}, more);
  };
  EXPECT_EQ(response({{"store", true}}), "unsupported_parameter store");
  EXPECT_EQ(response({{"reasoning", {{"effort", "low"}}}}),
            "unsupported_parameter reasoning.effort");
  const Json harmless = HarmlessFields();
  for (const auto& [name, value] : harmless.items()) {
    refused("/v1/completions", {{"prompt", "x"}}, {{name, value}});
  }
}

// The last one: nothing is logged after it.
TEST(Fields, TheLogHasAnEnd) {
  Json many = Json::object();
  for (int i = 0; i < 5000; ++i) many["field" + std::to_string(i)] = i;
  const std::string log = Ignored(many);
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 100);
}

}  // namespace
}  // namespace litecache::testing
