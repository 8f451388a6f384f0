// Loading, pings, draining, and shutdown.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "expect_error.h"
#include "server/test_server.h"

namespace litecache::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(Lifecycle, HealthTellsThatTheModelIsLoading) {
  TestServer::Options options;
  options.load = false;
  TestServer server(options);
  const Reply health = server.Get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.body, HasSubstr("loading"));
  const Reply models = server.Get("/v1/models");
  EXPECT_EQ(models.status, 503);
  EXPECT_EQ(models.headers.at("retry-after"), "1");
}

TEST(Lifecycle, SilentStreamsGetPings) {
  TestServer::Options options = Endless();
  options.server.http.ping_interval = milliseconds(30);
  TestServer server(options);
  Client client(server.port());
  // The server has nothing to send while this prompt is processed.
  client.Send(RequestText(
      "POST", "/v1/completions",
      Json{{"prompt", std::vector<int32_t>(40000, 20)}, {"max_tokens", 2}, {"stream", true}}
          .dump()));
  client.ReceiveUntil(": ping\n\n");
}

TEST(Lifecycle, DrainingFinishesWhatRuns) {
  TestServer server(Endless());
  server.SkipCleanCheck();
  Client running(server.port());
  running.Send(StreamRequest(3000));
  running.ReceiveUntil("data: ");
  Client idle(server.port());
  std::atomic<int> result{-1};
  std::thread shutdown([&] { result = server.server().Shutdown(2 * kPatience) ? 1 : 0; });
  EXPECT_THAT(running.ReceiveAll(), HasSubstr("data: [DONE]\n\n"));
  EXPECT_EQ(idle.ReceiveAll(), "");
  shutdown.join();
  EXPECT_EQ(result, 1);
  EXPECT_THROW(Client(server.port()), std::runtime_error);
  EXPECT_EQ(server.server().generating(), 0);
}

TEST(Lifecycle, TheTimeoutCancelsAndSaysSo) {
  TestServer server(Endless());
  server.SkipCleanCheck();
  Client stream(server.port());
  stream.Send(StreamRequest());
  stream.ReceiveUntil("data: ");
  Client whole(server.port());
  whole.Send(
      RequestText("POST", "/v1/completions",
                  Json{{"prompt", "x"}, {"max_tokens", 1000000}, {"ignore_eos", true}}.dump()));
  EXPECT_TRUE(Eventually([&] { return server.server().generating() == 2; }));
  EXPECT_FALSE(server.server().Shutdown(milliseconds(100)));
  const std::string events = stream.ReceiveAll();
  EXPECT_THAT(events, HasSubstr("shutting down"));
  EXPECT_THAT(events, ::testing::Not(HasSubstr("[DONE]")));
  EXPECT_EQ(ParseReply(whole.ReceiveAll()).status, 503);
  EXPECT_EQ(server.server().generating(), 0);
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().kv.used.total() == 0; }));
}

TEST(Lifecycle, EndingInTheMiddleLeavesNoThread) {
  const size_t before = Threads();
  for (int i = 0; i < 3; ++i) {
    TestServer server(Endless());
    server.SkipCleanCheck();
    std::vector<Client> clients;
    for (int k = 0; k < 10; ++k) {
      clients.emplace_back(server.port());
      // Short enough for all of them to fit: they all run, in any order.
      clients.back().Send(StreamRequest(50000));
    }
    clients[0].ReceiveUntil("data: ");
  }
  EXPECT_TRUE(Eventually([&] { return Threads() == before; })) << Threads() << " " << before;
}

TEST(Lifecycle, APortThatIsTakenIsAnError) {
  TestServer::Options options;
  options.load = false;
  TestServer server(options);
  server::ServerOptions second;
  second.http.port = server.port();
  EXPECT_ERROR(server::Server(second), Error, std::to_string(server.port()), "--port");
  second.http.host = "not an address";
  EXPECT_ERROR(server::Server(second), Error, "--host");
}

}  // namespace
}  // namespace litecache::testing
