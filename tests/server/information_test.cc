// Endpoints that tell about the model, the server and tokens.
#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "server/api_fixture.h"
#include "source_directory.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

class Information : public Api {};

TEST_F(Information, TokenizeAndDetokenize) {
  const auto ids = tokenizer().Encode("the cat");
  const Json answer = server().Ask("/tokenize", {{"prompt", "the cat"}});
  EXPECT_EQ(answer["tokens"], Json(ids));
  EXPECT_EQ(answer["count"], ids.size());
  EXPECT_EQ(server().Ask("/tokenize", ChatBody("hey"))["tokens"], Json(ChatPrompt("hey")));
  EXPECT_EQ(server().Ask("/detokenize", {{"tokens", ids}, {"skip_special_tokens", true}})["prompt"],
            "the cat");
  const Json strings =
      server().Ask("/tokenize", {{"content", " the"}, {"return_token_strs", true}});
  EXPECT_EQ(strings["token_strs"].back(), " the");
  EXPECT_EQ(server().Ask("/tokenize", {{"content", "the"}, {"add_special", false}}),
            server().Ask("/tokenize", {{"content", "the"}, {"add_special_tokens", false}}));
  server().ExpectError("/tokenize", {{"content", "the"}, {"with_pieces", true}}, 400,
                       "return_token_strs");
  server().ExpectError("/detokenize", {{"tokens", {100000}}}, 400, "out of range");
}

TEST_F(Information, ModelsPropsAndMetrics) {
  const Json models = Json::parse(server().Get("/v1/models").body);
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1024);
  EXPECT_EQ(Json::parse(server().Get("/v1/models/alias").body)["id"], "alias");
  EXPECT_EQ(server().Get("/v1/models/nobody").status, 404);
  const Json props = Json::parse(server().Get("/props").body);
  EXPECT_EQ(props["kv"]["policy"], "full");
  EXPECT_THAT(props["chat_template"].get<std::string>(), HasSubstr("m.content"));
  server().Ask("/v1/completions", {{"prompt", "the"}, {"max_tokens", 2}, {"ignore_eos", true}});
  // An answer reaches its client slightly before its request is removed from the counters.
  Reply metrics = server().Get("/metrics");
  for (int i = 0;
       i < 500 && !(metrics.body.find("litecache_requests_running 0\n") != std::string::npos);
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    metrics = server().Get("/metrics");
  }
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("version=0.0.4"));
  for (const char* line :
       {"litecache_requests_running 0\n", "litecache_requests_waiting 0\n",
        "litecache_time_to_first_token_seconds_bucket{le=\"+Inf\"}",
        "litecache_kv_capacity_bytes{tier=\"host\"}", "litecache_kv_hit_ratio 0\n",
        "litecache_http_responses_total{route=\"/v1/completions\",status=\"200\"}"}) {
    EXPECT_THAT(metrics.body, HasSubstr(line));
  }
}

// docs/reference/server.md has a table of them; `prefix_store_*` matches several.
TEST_F(Information, MetricsAreThoseOfTheirPage) {
  const std::string body = server().Get("/metrics").body;
  std::set<std::string> given;
  const std::regex family("# TYPE litecache_([a-z_]+) ");
  for (std::sregex_iterator at(body.begin(), body.end(), family), end; at != end; ++at) {
    given.insert((*at)[1]);
  }
  ASSERT_GT(given.size(), 20u);

  std::ifstream file(SourceDirectory() / "docs/reference/server.md");
  std::set<std::string> told;
  bool metrics = false;
  const std::regex name("`([a-z_]+)(\\{[a-z,]*\\})?`");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) metrics = line == "## Metrics";
    if (!metrics || !line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator at(cell.begin(), cell.end(), name), end; at != end; ++at) {
      told.insert((*at)[1]);
    }
  }
  // Those of several ranks or replicas, which this server does not have.
  std::erase_if(told, [](const std::string& one) { return one.starts_with("part_"); });
  EXPECT_EQ(given, told);
}

}  // namespace
}  // namespace litecache::testing
