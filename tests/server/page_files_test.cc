// The files of the page, and the numbers it draws. page_browser.py opens it in a browser.
#include <gmock/gmock.h>

#include <numeric>
#include <regex>

#include "server/page/page.h"
#include "server/test_server.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

// Addresses that a file refers to, as a browser would resolve them.
std::vector<std::string> References(const std::string& text) {
  static const std::regex kReference(R"re((?:src|href|from)(?:=| )["']([^"'#]+)["'])re");
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), kReference), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

TEST(Page, ComesWholeFromThisServerAndBeforeTheModel) {
  TestServer::Options options;
  options.load = false;
  options.server.service.keys.Add("key");
  TestServer server(options);
  const Reply index = server.Get("/");
  ASSERT_EQ(index.status, 200);
  EXPECT_EQ(index.headers.at("content-type"), "text/html; charset=utf-8");
  const auto references = References(index.body);
  EXPECT_GE(references.size(), 3u);
  for (const std::string& reference : references) {
    ASSERT_THAT(reference, ::testing::StartsWith("page/"));
    EXPECT_EQ(server.Get("/" + reference).status, 200) << reference;
  }
  for (const auto& file : server::EmbeddedFiles()) {
    const Reply reply = server.Get("/page/" + std::string(file.name));
    EXPECT_EQ(reply.status, 200) << file.name;
    EXPECT_EQ(reply.body, file.contents);
    EXPECT_THAT(reply.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
    EXPECT_EQ(reply.headers.at("x-content-type-options"), "nosniff");
    if (!file.name.ends_with(".js")) continue;
    EXPECT_THAT(reply.headers.at("content-type"), HasSubstr("text/javascript"));
    for (const std::string& reference : References(reply.body)) {
      ASSERT_THAT(reference, ::testing::StartsWith("./"));
      EXPECT_EQ(server.Get("/page/" + reference.substr(2)).status, 200) << reference;
    }
    // Text written by a model never becomes markup.
    EXPECT_THAT(reply.body, ::testing::Not(HasSubstr("innerHTML")));
    EXPECT_THAT(reply.body, ::testing::Not(HasSubstr("insertAdjacentHTML")));
  }
  EXPECT_EQ(Call(server.port(), "HEAD", "/").body, "");
  EXPECT_EQ(server.Get("/page/nothing.js").status, 404);
  EXPECT_EQ(server.Get("/page/../page/page.css").status, 404);
  EXPECT_EQ(server.Post("/", Json::object()).status, 405);
  EXPECT_EQ(server.Get("/stats").status, 401);
}

template <typename Counter>
std::vector<uint64_t> Column(const EngineStats& stats, Counter counter) {
  std::vector<uint64_t> values;
  for (const auto& head : stats.kv_heads) values.push_back(head.*counter);
  return values;
}

TEST(Page, StatsAreTheEngines) {
  TestServer::Options options;
  options.engine.kv.policy = "litecache";
  options.engine.kv.budget = KvBudget::Parse("8");
  options.engine.kv.recent_tokens = 4;
  options.engine.kv.carry_tokens = 0;
  options.engine.kv.retriever = "exact";
  TestServer server(options);
  EXPECT_EQ(Json::parse(server.Get("/stats").body)["tokens"]["generated"], 0);
  EXPECT_EQ(server
                .Post("/v1/completions", {{"prompt", std::vector<int32_t>(100, 20)},
                                          {"max_tokens", 40},
                                          {"ignore_eos", true}})
                .status,
            200);
  server.ExpectClean();
  const EngineStats stats = server.engine().Stats();
  const Json json = Json::parse(server.Get("/stats").body);
  EXPECT_EQ(json["tokens"]["prompt"], 100);
  EXPECT_EQ(json["tokens"]["generated"], 40);
  EXPECT_EQ(json["requests"]["running"], 0);
  EXPECT_EQ(json["kv"]["capacity"]["host"], stats.kv.capacity.host);
  EXPECT_EQ(json["kv"]["lookups"], stats.kv.lookups);
  EXPECT_EQ(json["kv"]["moved"]["spill"]["rows"], stats.kv.spill.rows);
  const Json& heads = json["heads"];
  EXPECT_EQ(heads["layers"].get<size_t>() * heads["kv_heads"].get<size_t>(), stats.kv_heads.size());
  const auto lookups = heads["lookups"].get<std::vector<uint64_t>>();
  EXPECT_EQ(lookups, Column(stats, &kv::HeadCounters::lookups));
  EXPECT_EQ(heads["hits"], Column(stats, &kv::HeadCounters::hits));
  EXPECT_EQ(heads["rows_moved"], Column(stats, &kv::HeadCounters::rows_moved));
  EXPECT_EQ(std::accumulate(lookups.begin(), lookups.end(), uint64_t{0}), stats.kv.lookups);
  EXPECT_GT(stats.kv.lookups, 0u);
}

TEST(Page, StatsOfFullAttentionHaveNoHeads) {
  TestServer server;
  EXPECT_TRUE(Json::parse(server.Get("/stats").body)["heads"].is_null());
}

}  // namespace
}  // namespace litecache::testing
