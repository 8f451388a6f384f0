// Misbehaving clients: whatever they do, the server continues, and nothing of their requests is
// left.
#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "server/test_server.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// As the program runs: the only memory in use after a request is its kept prefixes.
TestServer::Options Keeping() {
  TestServer::Options options = Endless();
  options.engine.prefix_cache = true;
  return options;
}

// Prefilling these prompts takes the small model seconds.
std::string LongPrompt(bool stream) {
  return RequestText(
      "POST", "/v1/completions",
      Json{{"prompt", std::vector<int32_t>(60000, 20)}, {"max_tokens", 5}, {"stream", stream}}
          .dump());
}

TEST(Faults, LeavingInTheMiddleOfAStreamCancels) {
  TestServer server(Keeping());
  Client client(server.port());
  client.Send(StreamRequest());
  client.ReceiveUntil("data: ");
  EXPECT_EQ(server.server().generating(), 1);
  client.Close();
  server.ExpectClean();
  EXPECT_EQ(server.server().http_counters().abandoned, 1u);
}

TEST(Faults, LeavingWithoutAStreamCancels) {
  TestServer server(Keeping());
  Client client(server.port());
  client.Send(
      RequestText("POST", "/v1/completions",
                  Json{{"prompt", "the"}, {"max_tokens", 1000000}, {"ignore_eos", true}}.dump()));
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().generated_tokens > 10; }));
  client.Reset();
  server.ExpectClean();
}

TEST(Faults, LeavingDuringThePrefillCancels) {
  TestServer server(Keeping());
  for (const bool stream : {false, true}) {
    const int64_t before = server.engine().Stats().prompt_tokens;
    Client client(server.port());
    client.Send(LongPrompt(stream));
    EXPECT_TRUE(Eventually([&] { return server.engine().Stats().prompt_tokens > before; }));
    client.Close();
    server.ExpectClean();
    const int64_t after = server.engine().Stats().prompt_tokens;
    EXPECT_LT(after - before, 60000) << "the prompt was processed to its end";
  }
}

TEST(Faults, LeavingTheQueueCancels) {
  TestServer::Options options = Endless();
  options.engine.max_batch = 1;
  TestServer server(options);
  Client running(server.port());
  running.Send(StreamRequest());
  running.ReceiveUntil("data: ");
  {
    Client waiting(server.port());
    waiting.Send(StreamRequest());
    EXPECT_TRUE(Eventually([&] { return server.engine().Stats().waiting == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().waiting == 0; }));
  EXPECT_EQ(server.server().generating(), 1);
  running.Close();
}

TEST(Faults, ASlowReaderDoesNotHoldUpOthersAndIsClosedInTheEnd) {
  TestServer::Options options = Endless();
  options.server.http.idle_timeout = milliseconds(700);
  TestServer server(options);
  Client slow(server.port(), 2048);
  // Many large events, so that the system's buffers, of megabytes, fill quickly.
  slow.Send(RequestText("POST", "/v1/completions",
                        Json{{"prompt", "the"},
                             {"n", 16},
                             {"max_tokens", 60000},
                             {"ignore_eos", true},
                             {"logprobs", 20},
                             {"stream", true}}
                            .dump()));
  slow.ReceiveUntil("data: ");
  // Other requests are served meanwhile.
  EXPECT_EQ(server.Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
  // The client reads nothing more: its buffers fill, and the time limit passes.
  EXPECT_TRUE(Eventually([&] { return server.server().http_counters().timeouts == 1; }));
  EXPECT_TRUE(Eventually([&] { return server.server().generating() == 0; }));
}

TEST(Faults, ManyThatDoNotReadHoldUpNobody) {
  TestServer server(Endless());
  std::vector<Client> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(server.port(), 2048);
    silent.back().Send(RequestText("POST", "/v1/completions",
                                   Json{{"prompt", "the"},
                                        {"max_tokens", 20000},
                                        {"ignore_eos", true},
                                        {"logprobs", 20},
                                        {"stream", true}}
                                       .dump()));
  }
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().running == 20; }));
  const int64_t before = server.engine().Stats().generated_tokens;
  EXPECT_TRUE(Eventually([&] { return server.engine().Stats().generated_tokens > before + 2000; }));
  EXPECT_EQ(server.Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
  for (Client& client : silent) client.Reset();
  server.ExpectClean();
  EXPECT_EQ(server.server().http_counters().abandoned, 20u);
}

TEST(Faults, HalfSentRequestsAreClosed) {
  TestServer::Options options;
  options.server.http.idle_timeout = milliseconds(300);
  TestServer server(options);
  const std::string whole = RequestText("POST", "/v1/completions", "{\"prompt\": \"x\"}");
  for (const size_t sent : {size_t{0}, size_t{1}, size_t{20}, whole.size() - 3}) {
    Client client(server.port());
    client.Send(whole.substr(0, sent));
    const std::string answer = client.ReceiveAll();
    if (sent == 0) {
      EXPECT_EQ(answer, "");
    } else {
      EXPECT_EQ(ParseReply(answer).status, 408);
    }
  }
  EXPECT_EQ(server.server().http_counters().timeouts, 4u);
}

TEST(Faults, GarbageIsRefused) {
  TestServer server;
  auto random = TestRandom(1);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(1 + random() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them start like a request.
    if (i % 2 == 0) bytes = "POST /v1/completions HTTP/1.1\r\n" + bytes;
    Client client(server.port());
    client.Send(bytes);
    client.ShutdownSend();
    const std::string answer = client.ReceiveAll();
    if (!answer.empty()) {
      EXPECT_GE(ParseReply(answer).status, 400);
    }
  }
}

TEST(Faults, RandomJsonIsAnsweredInOpenAisShape) {
  TestServer server;
  auto random = TestRandom(2);
  const std::vector<std::string> names = {"prompt",     "messages",   "n",    "stop",
                                          "stream",     "logprobs",   "seed", "max_tokens",
                                          "logit_bias", "temperature"};
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    0,
                                    1e300,
                                    "x",
                                    "",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({1, "a"}),
                                    Json{{"a", 1}},
                                    18446744073709551615u};
  const std::vector<std::string> paths = {"/v1/completions", "/v1/chat/completions",
                                          "/v1/responses", "/tokenize", "/detokenize"};
  for (int i = 0; i < 300; ++i) {
    Json body = {{"max_tokens", 1}};
    for (size_t k = random() % 5; k > 0; --k) {
      body[names[random() % names.size()]] = values[random() % values.size()];
    }
    const Reply reply = server.Post(paths[random() % paths.size()], body);
    if (reply.status == 200) continue;
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_TRUE(Json::parse(reply.body)["error"]["message"].is_string()) << body;
  }
}

TEST(Faults, ThousandsOfConnectionsComeAndGo) {
  TestServer server(Endless());
  const size_t threads = Threads();
  auto random = TestRandom(3);
  for (int i = 0; i < 3000; ++i) {
    Client client(server.port());
    switch (random() % 5) {
      case 0:
        break;
      case 1:
        client.Send("GET /health HTTP/1.1\r\n");
        break;
      case 2:
        client.Send(StreamRequest());
        break;
      case 3:
        client.Send(StreamRequest());
        client.Receive(milliseconds(2));
        break;
      default:
        client.Send(RequestText("GET", "/health"));
    }
    if (random() % 2 == 0) client.Reset();
  }
  // The last ones may have been closed before they were accepted.
  const std::atomic<uint64_t>& accepted = server.server().http_counters().accepted;
  EXPECT_TRUE(Eventually([&] { return accepted >= 3000u; })) << accepted;
  server.ExpectClean();
  EXPECT_EQ(Threads(), threads);
}

}  // namespace
}  // namespace litecache::testing
