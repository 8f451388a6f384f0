// A server of several ranks: its answers are those of one process, and a rank that is killed ends
// what runs.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "cli/rank_programs.h"
#include "server/http_client.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// The texts that a server answers to random requests that come at once; some clients leave before
// their answer is complete, and get "".
std::vector<std::string> Answers(uint16_t port, int count) {
  std::mt19937_64 random = TestRandom(11);
  std::vector<std::string> texts(static_cast<size_t>(count));
  std::vector<std::thread> clients;
  std::string before = RandomText(300);
  for (int i = 0; i < count; ++i) {
    // Half of them begin like an earlier one, whose KV may be kept.
    const std::string prompt =
        i % 2 == 0 ? before.substr(0, 200) + std::to_string(i) : RandomText(20 + random() % 300);
    const bool leaves = random() % 4 == 0;
    const Json body = {{"prompt", prompt},
                       {"max_tokens", leaves ? 400 : static_cast<int>(1 + random() % 24)},
                       {"temperature", i % 3 == 0 ? 0.0 : 0.8},
                       {"seed", i},
                       {"n", 1 + static_cast<int>(random() % 2)},
                       {"ignore_eos", true},
                       {"stream", leaves}};
    clients.emplace_back([&texts, port, body, leaves, i] {
      if (leaves) {
        Client client(port);
        client.Send(RequestText("POST", "/v1/completions", body.dump()));
        client.ReceiveUntil("data:");
        client.Reset();
        return;
      }
      const Reply reply = Call(port, "POST", "/v1/completions", body.dump());
      EXPECT_EQ(reply.status, 200) << reply.body;
      for (const Json& choice : Json::parse(reply.body)["choices"]) {
        texts[static_cast<size_t>(i)] += choice["text"].get<std::string>() + "|";
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return texts;
}

class RankLivesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RankLivesTest, AnswersAreThoseOfOneProcess) {
  const FixtureModel model(1024, "llama-bias");
  std::vector<std::vector<std::string>> texts;
  for (const int ranks : {1, 2}) {
    Program server(ServeWords(model, GetParam(), ranks), {});
    ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
    texts.push_back(Answers(PortOf(server.err()), 24));
    const Json parts = Json::parse(Call(PortOf(server.err()), "GET", "/stats").body)["parts"];
    EXPECT_EQ(parts.size(), ranks == 1 ? 0u : 2u);
    for (const Json& part : parts) EXPECT_GT(part["kv"]["bytes_read"], 0) << part["name"];
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Finish().exit_code, 0) << server.err();
  }
  if (GetParam() == "full") {
    EXPECT_EQ(texts[0], texts[1]);
    return;
  }
  // As above, rounding can exchange rows.
  size_t equal = 0;
  for (size_t i = 0; i < texts[0].size(); ++i) equal += texts[0][i] == texts[1][i] ? 1 : 0;
  EXPECT_GE(equal, texts[0].size() * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(Policies, RankLivesTest, ::testing::Values("full", "litecache"),
                         [](const auto& info) { return info.param; });

TEST(TensorParallelEndTest, RequestsEndWhenARankIsKilled) {
  const FixtureModel model(1024, "llama-bias");
  Program server(ServeWords(model, "full", 2), {});
  ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
  const uint16_t port = PortOf(server.err());
  const std::vector<int> ranks = ChildrenOf(server.pid());
  ASSERT_EQ(ranks.size(), 1u);
  const Json body = {{"prompt", "a"}, {"max_tokens", 1000}, {"ignore_eos", true}, {"stream", true}};
  Client client(port);
  client.Send(RequestText("POST", "/v1/completions", body.dump()));
  client.ReceiveUntil("data:");
  kill(ranks[0], SIGKILL);
  client.ReceiveUntil("rank 1 has ended (signal 9 (Killed))");
  client.Close();
  const Reply reply = Call(port, "POST", "/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("rank 1 has ended"));
  EXPECT_TRUE(server.WaitForError("restart the program")) << server.err();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0) << server.err();
}

TEST(TensorParallelEndTest, RanksEndWithTheProgram) {
  const FixtureModel model(1024, "llama-bias");
  int rank = 0;
  {
    Program server(ServeWords(model, "full", 2), {});
    ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
    rank = ChildrenOf(server.pid()).at(0);
    server.Signal(SIGKILL);
    server.Finish();
  }
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (kill(rank, 0) == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_NE(kill(rank, 0), 0) << "rank " << rank << " is still there";
}

}  // namespace
}  // namespace litecache::testing
