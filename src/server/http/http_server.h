// Listens, and enforces the limits on connections. Independent of what is served.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "server/http/connection.h"
#include "server/http/exchange.h"
#include "server/http/io_loop.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"
#include "server/memory_budget.h"

namespace litecache::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free port
  // PEM files; both or neither.
  std::string tls_certificate;
  std::string tls_key;
  RequestReader::Limits limits;
  int64_t max_connections = 1024;
  // Memory for requests that are being received or wait for a worker, not counting small ones; 0:
  // eight times the largest body.
  int64_t pending_bytes = 0;
  // Limit on the time without a byte from or to the client when one is due: between requests, and
  // in a stalled answer. A request must arrive within this time plus one second for every 16 KiB of
  // it.
  std::chrono::milliseconds idle_timeout{60000};
  std::chrono::milliseconds ping_interval{15000};
};

// Counters and gauges of the HTTP layer.
struct HttpCounters {
  std::atomic<int64_t> connections{0};    // open
  std::atomic<int64_t> exchanges{0};      // requests that have arrived and are unanswered
  std::atomic<uint64_t> accepted{0};      // connections
  std::atomic<uint64_t> refused{0};       // connections beyond the limit
  std::atomic<uint64_t> abandoned{0};     // requests whose client left before the end of the answer
  std::atomic<uint64_t> bad_requests{0};  // invalid HTTP, or beyond a limit
  std::atomic<uint64_t> timeouts{0};      // connections closed for a timeout
};

class HttpServer {
 public:
  // Called on the loop's thread for every request; answers it at once or later.
  using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;
  // Called on the loop's thread when a request's header has arrived and before its body has: if it
  // returns an answer, the body is not read. Clients without a key therefore cannot fill the memory
  // with bodies.
  using CheckHeader = std::function<std::optional<HttpResponse>(const HttpRequest&)>;
  // Makes the body of an error raised by the HTTP layer.
  using ErrorBody = std::function<HttpResponse(int status, const std::string& message)>;

  // Called on the loop's thread when an answer has been sent.
  using Finished = std::function<void(const Exchange&)>;

  // Binds. Throws Error and FileError. The caller starts the loop afterwards.
  HttpServer(IoLoop& loop, HttpOptions options, Handler handler, CheckHeader check_header,
             ErrorBody error_body, Finished finished);
  // The loop must have stopped.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return listener_->address(); }
  uint16_t port() const { return listener_->port(); }
  const HttpCounters& counters() const { return counters_; }

  // ---- any thread ----
  // Accepts no more connections, closes idle ones, and the others after their answer.
  void Drain();
  // Closes all connections.
  void Abort();
  // Waits until no connection is left; false after the time limit.
  bool WaitUntilEmpty(std::chrono::milliseconds limit);

 private:
  friend class Connection;

  void Accept(std::unique_ptr<Transport> transport);
  void Remove(const std::shared_ptr<Connection>& connection);
  void Sweep();

  IoLoop& loop_;
  HttpOptions options_;
  Handler handler_;
  CheckHeader check_header_;
  ErrorBody error_body_;
  Finished finished_;
  std::unique_ptr<TlsContext> tls_;
  HttpCounters counters_;
  MemoryBudget bodies_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;  // loop's thread
  bool draining_ = false;                                        // loop's thread
  std::mutex mutex_;
  std::condition_variable emptied_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace litecache::server
