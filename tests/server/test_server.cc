#include "server/test_server.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "base/logging.h"

namespace litecache::testing {

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

size_t Threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

TestServer::TestServer(const Options& options)
    : server_((InitLogging("off"), std::make_unique<server::Server>(options.server))) {
  if (!options.load) return;
  const std::string model = options.model.empty()
                                ? (options.endless ? EndlessModel() : SharedModel()).path()
                                : options.model;
  auto engine = Engine::Load(model, options.engine);
  engine_ = engine.get();
  server_->SetModel(server::MakeServedModel(std::move(engine), {"tiny", "alias"},
                                            options.chat_template, options.limits));
  EXPECT_TRUE(Eventually([&] { return Get("/health").status == 200; }));
}

TestServer::~TestServer() {
  if (engine_ != nullptr && check_) {
    ExpectClean();
    // The server still answers requests.
    EXPECT_EQ(Post("/v1/completions", {{"prompt", "the"}, {"max_tokens", 2}}).status, 200);
  }
}

void TestServer::ExpectClean() {
  EXPECT_TRUE(Eventually([&] { return server_->generating() == 0; }));
  EXPECT_TRUE(Eventually([&] { return server_->http_counters().exchanges == 0; }))
      << server_->http_counters().exchanges;
  EXPECT_TRUE(Eventually([&] {
    const EngineStats stats = engine_->Stats();
    return stats.running == 0 && stats.waiting == 0 && stats.kv.used == stats.prefix.bytes;
  })) << engine_->Stats().running
      << " running, " << engine_->Stats().waiting << " waiting, "
      << engine_->Stats().kv.used.total() << " bytes of KV";
  EXPECT_TRUE(Eventually([&] { return server_->http_counters().connections == 0; }))
      << server_->http_counters().connections << " connections";
}

Json TestServer::Ask(std::string_view path, const Json& body) {
  const Reply reply = Post(path, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body, nullptr, false);
}

Json TestServer::ExpectError(std::string_view path, const Json& body, int status,
                             const std::string& part) {
  const Reply reply = Post(path, body);
  EXPECT_EQ(reply.status, status) << body << " -> " << reply.body;
  const Json parsed = Json::parse(reply.body, nullptr, false);
  const Json error = parsed.is_object() ? parsed.value("error", Json()) : Json();
  EXPECT_TRUE(error.is_object() && error.contains("type") && error.contains("param") &&
              error.contains("code"))
      << reply.body;
  EXPECT_THAT(error.value("message", ""), ::testing::HasSubstr(part));
  return error;
}

std::vector<Json> TestServer::Stream(std::string_view path, Json body) {
  body["stream"] = true;
  const Reply reply = Post(path, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(reply.headers.at("content-type"), ::testing::StartsWith("text/event-stream"));
  std::vector<Json> events;
  for (const auto& event : Events(reply.body)) {
    if (event != "[DONE]") events.push_back(Json::parse(event));
  }
  if (path != "/v1/responses" && path != "/v1/messages") {
    EXPECT_THAT(reply.body, ::testing::EndsWith("data: [DONE]\n\n"));
  }
  return events;
}

std::unique_ptr<TestServer> SharedServerTest::server_;

TestServer::Options Endless() {
  TestServer::Options options;
  options.endless = true;
  options.limits.default_max_tokens = 1000000;
  return options;
}

std::string StreamRequest(int64_t max_tokens, const std::vector<std::string>& headers) {
  return RequestText(
      "POST", "/v1/completions",
      Json{{"prompt", "the"}, {"max_tokens", max_tokens}, {"ignore_eos", true}, {"stream", true}}
          .dump(),
      headers);
}

Json ChatBody(const std::string& text, const Json& more) {
  Json body = {{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}};
  body.update(more);
  return body;
}

}  // namespace litecache::testing
