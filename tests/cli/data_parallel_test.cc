// A server with several engines: requests are spread over them, and its figures are of all.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "server/http_client.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

TEST(DataParallelTest, RequestsAreSpreadAndFiguresAreOfAll) {
  const FixtureModel model(1024, "llama-bias");
  Program server({"serve", "--port",    "0",         "--device",    "cpu",       "--memory",
                  "1GiB",  "--threads", "1",         "--kv-policy", "litecache", "--kv-budget",
                  "32",    "--recent",  "16",        "--sink",      "4",         "--data-parallel",
                  "2",     "--model",   model.path()},
                 {});
  ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
  const std::string sign = "://127.0.0.1:";
  const auto port =
      static_cast<uint16_t>(std::stoi(server.err().substr(server.err().find(sign) + sign.size())));
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([port, i] {
      const Json body = {{"prompt", std::string(100, static_cast<char>('a' + i))},
                         {"max_tokens", 40},
                         {"ignore_eos", true}};
      EXPECT_EQ(Call(port, "POST", "/v1/completions", body.dump()).status, 200);
    });
  }
  for (std::thread& client : clients) client.join();

  const Json stats = Json::parse(Call(port, "GET", "/stats").body);
  EXPECT_EQ(stats["tokens"]["generated"], 8 * 40);
  ASSERT_EQ(stats["parts"].size(), 2u);
  uint64_t lookups = 0;
  for (const Json& part : stats["parts"]) {
    EXPECT_GT(part["kv"]["lookups"], 0) << part["name"];
    lookups += part["kv"]["lookups"].get<uint64_t>();
  }
  EXPECT_EQ(stats["kv"]["lookups"], lookups);
  uint64_t of_heads = 0;
  for (const Json& count : stats["heads"]["lookups"]) of_heads += count.get<uint64_t>();
  EXPECT_EQ(of_heads, lookups);
  const std::string metrics = Call(port, "GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("litecache_part_kv_used_bytes{part=\"replica 1\",tier=\"host\"}"));
  EXPECT_THAT(metrics, HasSubstr("litecache_part_sequences_running{part=\"replica 0\"} 0"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0) << server.err();
}

}  // namespace
}  // namespace litecache::testing
