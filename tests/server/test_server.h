// A server in this process, on a separate port, with a small model.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/fixture_model.h"
#include "server/http_client.h"
#include "server/server.h"

namespace litecache::testing {

using Json = nlohmann::ordered_json;

// Waits for a condition that must come true; only a bug reaches the long limit.
bool Eventually(const std::function<bool()>& condition);

// Number of threads of this process.
size_t Threads();

class TestServer {
 public:
  struct Options {
    server::ServerOptions server;
    server::RequestLimits limits;
    EngineOptions engine;
    bool endless = false;       // a model with a context longer than any test
    std::string model;          // a directory; "": the shared one
    std::string chat_template;  // a file; "": the model's own
    bool load = true;           // false: the model is not loaded so far
    Options() {
      server.http.port = 0;
      engine.threads = 1;
      engine.memory = uint64_t{1} << 30;
      engine.show_progress = false;
    }
  };

  explicit TestServer(const Options& options = {});
  // Checks that everything has ended: no request, page or sample is left; a request is answered.
  ~TestServer();

  uint16_t port() const { return server_->port(); }
  server::Server& server() { return *server_; }
  Engine& engine() { return *engine_; }
  // For checks while the server still runs.
  void ExpectClean();
  void SkipCleanCheck() { check_ = false; }

  litecache::testing::Reply Get(std::string_view path) { return Call(port(), "GET", path); }
  litecache::testing::Reply Post(std::string_view path, const Json& body) {
    return Call(port(), "POST", path, body.dump());
  }
  // Posts and expects 200.
  Json Ask(std::string_view path, const Json& body);
  // Posts and expects an error with that status whose message contains the part; returns the value
  // of {"error": ...}.
  Json ExpectError(std::string_view path, const Json& body, int status, const std::string& part);
  // Posts with "stream": true; returns the events' JSON without the closing [DONE], which is
  // required.
  std::vector<Json> Stream(std::string_view path, Json body);

 private:
  std::unique_ptr<server::Server> server_;
  Engine* engine_ = nullptr;
  bool check_ = true;
};

// A test suite whose tests share one server.
class SharedServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { Start({}); }
  static void TearDownTestSuite() { server_.reset(); }
  // For suites with options of their own, from their SetUpTestSuite().
  static void Start(const TestServer::Options& options) {
    server_ = std::make_unique<TestServer>(options);
  }
  static TestServer& server() { return *server_; }

 private:
  static std::unique_ptr<TestServer> server_;
};

// Answers that go on for longer than any test.
TestServer::Options Endless();
// A request for a stream that ends only when its client leaves.
std::string StreamRequest(int64_t max_tokens = 1000000,
                          const std::vector<std::string>& headers = {});

// {"messages": [{"role": "user", "content": text}], ...more}
Json ChatBody(const std::string& text, const Json& more = Json::object());

}  // namespace litecache::testing
