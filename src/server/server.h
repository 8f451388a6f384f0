// An HTTP server for an Engine with OpenAI's API.
//
//   Server server(options);             // listens; /health answers 503
//   server.SetModel(std::move(model));  // serves
//   server.Shutdown(10s);               // drains
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/api/model.h"
#include "server/http/http_server.h"
#include "server/service.h"

namespace litecache::server {

struct ServerOptions {
  HttpOptions http;
  ServiceOptions service;
};

// A model ready for requests: the engine and its chat template (`template_file`, else the model's
// own, else none). `names`: the names that requests may use; empty: the directory's name. Throws
// what reading the template throws.
std::unique_ptr<ServedModel> MakeServedModel(std::unique_ptr<Engine> engine,
                                             std::vector<std::string> names,
                                             const std::string& template_file,
                                             const RequestLimits& limits);

class Server {
 public:
  // Binds and starts to answer. Throws Error, FileError, InvalidArgument.
  explicit Server(ServerOptions options);
  // Ends all requests at once.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void SetModel(std::unique_ptr<ServedModel> model);

  // "http://127.0.0.1:8080"
  std::string url() const;
  uint16_t port() const;

  // Stops accepting, lets running requests continue for `limit`, then cancels them and gives the
  // answers a moment to be sent. Returns true if nothing had to be cancelled. Blocks.
  bool Shutdown(std::chrono::milliseconds limit);

  // For tests and logs; callable from any thread.
  const HttpCounters& http_counters() const;
  int64_t generating() const;

 private:
  bool tls_;
  // Outlives the loop: tasks that were posted and never ran refer to the service until they are
  // destroyed.
  std::unique_ptr<Service> service_;
  IoLoop loop_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace litecache::server
