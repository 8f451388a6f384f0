// A server in this process, on a port of its own, over a small model.
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

// Waits for a condition that must come true; a long limit, reached only by what is broken.
bool Eventually(const std::function<bool()>& condition);

// Threads of this process.
size_t Threads();

class TestServer {
 public:
  struct Options {
    server::ServerOptions server;
    server::RequestLimits limits;
    EngineOptions engine;
    bool endless = false;  // a model with a context that no test reaches the end of
    bool load = true;      // false: the model is not there yet
    Options() {
      server.http.port = 0;
      engine.threads = 1;
      engine.memory = uint64_t{1} << 30;
      engine.show_progress = false;
    }
  };

  explicit TestServer(const Options& options = {});
  // Everything has ended: no request, page or sample is left; a request is answered.
  ~TestServer();

  uint16_t port() const { return server_->port(); }
  server::Server& server() { return *server_; }
  Engine& engine() { return *engine_; }
  // For what is left to be checked while the server still runs.
  void ExpectClean();
  void SkipCleanCheck() { check_ = false; }

  litecache::testing::Reply Get(std::string_view path) { return Call(port(), "GET", path); }
  litecache::testing::Reply Post(std::string_view path, const Json& body) {
    return Call(port(), "POST", path, body.dump());
  }
  // Posts and expects 200.
  Json Ask(std::string_view path, const Json& body);
  // Posts and expects an error of that status whose message has the part; returns {"error": ...}'s
  // value.
  Json ExpectError(std::string_view path, const Json& body, int status, const std::string& part);
  // Posts with "stream": true; the events' JSON without the closing [DONE], which must be there.
  std::vector<Json> Stream(std::string_view path, Json body);

 private:
  std::unique_ptr<server::Server> server_;
  Engine* engine_ = nullptr;
  bool check_ = true;
};

// {"messages": [{"role": "user", "content": text}], ...more}
Json ChatBody(const std::string& text, const Json& more = Json::object());

}  // namespace litecache::testing
