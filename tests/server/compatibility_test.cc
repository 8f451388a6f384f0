// Paths and fields that clients of llama.cpp's server and of vLLM use.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

TEST(Compatibility, PathsWithoutAVersion) {
  TestServer server;
  const Json chat = ChatBody("x", {{"max_tokens", 2}, {"temperature", 0}});
  EXPECT_EQ(server.Ask("/chat/completions", chat)["choices"],
            server.Ask("/v1/chat/completions", chat)["choices"]);
  EXPECT_EQ(server.Ask("/completions", {{"prompt", "x"}})["object"], "text_completion");
  EXPECT_EQ(server.Ask("/responses", {{"input", "x"}, {"max_output_tokens", 2}})["object"],
            "response");
  EXPECT_EQ(server.Ask("/messages", chat)["type"], "message");
  EXPECT_TRUE(server.Ask("/messages/count_tokens", chat).contains("input_tokens"));
  EXPECT_EQ(server.Get("/models").body, server.Get("/v1/models").body);
  EXPECT_EQ(Json::parse(server.Get("/models/alias").body)["id"], "alias");
  EXPECT_EQ(server.Get("/models/nobody").status, 404);
  EXPECT_EQ(server.Get("/chat/completions").status, 405);
  EXPECT_EQ(server.Get("/v1/health").status, 404);
  // They are counted as what they stand for.
  EXPECT_THAT(server.Get("/metrics").body,
              HasSubstr("{route=\"/v1/chat/completions\",status=\"200\"} 2"));
}

TEST(Compatibility, KeysGuardEveryPath) {
  TestServer::Options options;
  options.server.service.keys.Add("key");
  TestServer server(options);
  server.SkipCleanCheck();
  EXPECT_EQ(server.Get("/ping").status, 200);
  for (const char* path : {"/models", "/version", "/slots"}) {
    EXPECT_EQ(server.Get(path).status, 401) << path;
  }
  for (const char* path : {"/chat/completions", "/messages", "/v1/messages", "/apply-template"}) {
    EXPECT_EQ(server.Post(path, ChatBody("x")).status, 401) << path;
  }
}

// What clients send back of answers that other servers gave.
TEST(Compatibility, EarlierAnswersWithoutText) {
  TestServer server;
  const auto prompt = [&](const Json& answer) {
    const Json turns = Json::array({Json{{"role", "user"}, {"content", "a"}}, answer,
                                    Json{{"role", "user"}, {"content", "b"}}});
    return server.Ask("/apply-template", {{"messages", turns}})["prompt"].get<std::string>();
  };
  const Json assistant = {{"role", "assistant"}};
  const auto with = [&](const char* name, const Json& value) {
    Json answer = assistant;
    answer[name] = value;
    return answer;
  };
  EXPECT_EQ(prompt(with("content", nullptr)), prompt(with("content", "")));
  const Json refusal = {{"type", "refusal"}, {"refusal", "no"}};
  EXPECT_EQ(prompt(with("content", Json::array({refusal}))), prompt(with("content", "no")));
  server.ExpectError(
      "/apply-template",
      {{"messages",
        Json::array({with("content", Json::array({Json{{"type", "refusal"}, {"text", "no"}}}))})}},
      400, "messages[0].content[0].refusal");
  server.ExpectError("/apply-template", {{"messages", Json::array({assistant})}}, 400,
                     "messages[0].content");
}

TEST(Compatibility, SmallEndpoints) {
  TestServer::Options options;
  options.limits.max_batch = 3;
  TestServer server(options);
  EXPECT_EQ(Json::parse(server.Get("/ping").body)["status"], "ok");
  EXPECT_THAT(Json::parse(server.Get("/version").body)["version"].get<std::string>(),
              HasSubstr("."));
  const Json slots = Json::parse(server.Get("/slots").body);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[2]["id"], 2);
  EXPECT_EQ(slots[0]["is_processing"], false);
  EXPECT_EQ(server.Ask("/apply-template", ChatBody("hey"))["prompt"],
            "<s><|user|>hey</s><|assistant|>");
  server.ExpectError("/apply-template", ChatBody("hey", {{"chat_template", "x"}}), 400,
                     "--trust-chat-template");
}

TEST(Compatibility, TimingsWhereAsked) {
  TestServer server;
  const Json body =
      ChatBody("x", {{"max_tokens", 5}, {"ignore_eos", true}, {"timings_per_token", true}});
  const Json answer = server.Ask("/v1/chat/completions", body);
  const Json& timings = answer["timings"];
  EXPECT_EQ(timings["predicted_n"], answer["usage"]["completion_tokens"]);
  EXPECT_EQ(timings["prompt_n"].get<int>() + timings["cache_n"].get<int>(),
            answer["usage"]["prompt_tokens"]);
  for (const char* name : {"prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_ms",
                           "predicted_per_token_ms", "predicted_per_second"}) {
    EXPECT_TRUE(timings[name].is_number()) << name;
  }
  EXPECT_GT(timings["prompt_ms"], 0);
  EXPECT_EQ(server.Stream("/v1/chat/completions", body).back()["timings"]["predicted_n"], 5);
  EXPECT_FALSE(server.Ask("/v1/completions", {{"prompt", "x"}}).contains("timings"));
}

}  // namespace
}  // namespace litecache::testing
