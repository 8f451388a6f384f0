// Limits: what is beyond them is refused, and no client takes the places of the others.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace litecache::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(Limits, BodiesAndHeadersBeyondTheLimits) {
  TestServer::Options options;
  options.server.http.limits.body_bytes = 10000;
  options.server.http.limits.header_bytes = 4096;
  TestServer server(options);
  const Reply large = Call(server.port(), "POST", "/v1/completions", std::string(2000000, 'x'));
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.body, HasSubstr("--max-body"));
  // In chunks, whose total size is not announced.
  Client client(server.port());
  client.Send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "1000\r\n" + std::string(4096, 'x') + "\r\n";
  for (int i = 0; i < 5; ++i) client.Send(chunk);
  EXPECT_EQ(ParseReply(client.ReceiveAll()).status, 413);
  EXPECT_EQ(Call(server.port(), "GET", "/health", "", {"X-Long: " + std::string(5000, 'y')}).status,
            431);
  EXPECT_EQ(server.server().http_counters().bad_requests, 3u);
}

TEST(Limits, ConnectionsBeyondTheLimitAreTold) {
  TestServer::Options options;
  options.server.http.max_connections = 3;
  TestServer server(options);
  std::vector<Client> held;
  for (int i = 0; i < 3; ++i) {
    held.emplace_back(server.port());
    held.back().Send(RequestText("GET", "/health"));
    held.back().ReceiveUntil("ok");
  }
  Client fourth(server.port());
  const Reply refused = ParseReply(fourth.ReceiveAll());
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("--max-connections"));
  held.clear();
  EXPECT_TRUE(Eventually([&] { return server.server().http_counters().connections == 0; }));
}

TEST(Limits, AFullQueueAnswers429) {
  TestServer::Options options = Endless();
  options.engine.max_batch = 1;
  options.server.service.max_queue = 2;
  TestServer server(options);
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(StreamRequest());
    EXPECT_TRUE(Eventually([&] {
      const auto stats = server.engine().Stats();
      return stats.running == 1 && stats.waiting == i;
    }));
  }
  const Reply reply = server.Post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(reply.status, 429);
  EXPECT_GE(std::stoi(reply.headers.at("retry-after")), 1);
  EXPECT_THAT(reply.body, HasSubstr("rate_limit_error"));
  clients.erase(clients.begin() + 1);  // a waiting client leaves, which frees a place
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().waiting == 1; }));
  Client next(server.port());
  next.Send(StreamRequest());
  EXPECT_THAT(next.ReceiveUntil("\r\n"), HasSubstr("200"));
  clients.clear();
}

std::string StreamRequestOf(const std::string& key) {
  return StreamRequest(1000000, {"Authorization: Bearer " + key});
}

TEST(Limits, OneKeyNeitherFillsTheQueueNorHoldsUpAnother) {
  TestServer::Options options = Endless();
  options.engine.max_batch = 1;
  options.server.service.max_queue = 4;
  options.server.service.keys.Add("greedy");
  options.server.service.keys.Add("modest");
  TestServer server(options);
  server.SkipCleanCheck();  // it has no key
  std::vector<Client> flood;
  for (int i = 0; i < 5; ++i) {
    flood.emplace_back(server.port());
    flood.back().Send(StreamRequestOf("greedy"));
    EXPECT_TRUE(Eventually([&] {
      const auto stats = server.engine().Stats();
      return stats.running == 1 && stats.waiting == i;
    }));
  }
  const auto ask = [&](const std::string& key) {
    return Call(server.port(), "POST", "/v1/completions",
                Json{{"prompt", "x"}, {"max_tokens", 2}}.dump(), {"Authorization: Bearer " + key})
        .status;
  };
  EXPECT_EQ(ask("greedy"), 429);
  // The other key has a place and the next turn: it is served before requests that came earlier.
  Client modest(server.port());
  modest.Send(StreamRequestOf("modest"));
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().waiting == 5; }));
  EXPECT_EQ(ask("greedy"), 429);
  flood.front().Close();
  EXPECT_THAT(modest.ReceiveUntil("data: "), HasSubstr("200"));
  EXPECT_EQ(server.engine().Stats().waiting, 4);
  modest.Close();
  flood.clear();
  server.ExpectClean();
}

// A chat during another key's prompt that takes seconds: its own prompt gets its turns.
TEST(Limits, ALongPromptOfAnotherKeyDoesNotHoldUpAShortOne) {
  TestServer::Options options = Endless();
  options.server.service.keys.Add("long");
  options.server.service.keys.Add("short");
  TestServer server(options);
  server.SkipCleanCheck();
  Client reader(server.port());
  reader.Send(
      RequestText("POST", "/v1/completions",
                  Json{{"prompt", std::vector<int32_t>(60000, 20)}, {"max_tokens", 2}}.dump(),
                  {"Authorization: Bearer long"}));
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().prompt_tokens > 0; }));
  EXPECT_EQ(Call(server.port(), "POST", "/v1/completions",
                 Json{{"prompt", std::vector<int32_t>(1000, 20)}, {"max_tokens", 3}}.dump(),
                 {"Authorization: Bearer short"})
                .status,
            200);
  EXPECT_LT(server.engine().Stats().prompt_tokens, 60000) << "the long prompt came first";
  reader.Close();
  server.ExpectClean();
}

TEST(Limits, PreparingARequestTakesABoundedTime) {
  TestServer::Options options;
  options.server.service.prepare_limit = milliseconds(1);
  TestServer server(options);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "some words ";
  server.ExpectError("/tokenize", {{"prompt", text}}, 400, "CPU time");
  EXPECT_EQ(server.Ask("/tokenize", {{"prompt", "x"}, {"add_special_tokens", false}})["count"], 1);
}

}  // namespace
}  // namespace litecache::testing
