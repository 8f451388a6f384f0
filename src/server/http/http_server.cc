#include "server/http/http_server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace litecache::server {
namespace {

// Connections beyond the limit that receive an error; those beyond these are closed without one.
constexpr int64_t kRefused = 64;

}  // namespace

HttpServer::HttpServer(IoLoop& loop, HttpOptions options, Handler handler, CheckHeader check_header,
                       ErrorBody error_body, Finished finished)
    : loop_(loop),
      options_(std::move(options)),
      handler_(std::move(handler)),
      check_header_(std::move(check_header)),
      error_body_(std::move(error_body)),
      finished_(std::move(finished)),
      bodies_(options_.pending_bytes > 0 ? options_.pending_bytes
                                         : 8 * static_cast<int64_t>(options_.limits.body_bytes)) {
  if (options_.tls_certificate.empty() != options_.tls_key.empty()) {
    throw InvalidArgument("--tls-cert and --tls-key go together: one of them is missing");
  }
  if (!options_.tls_certificate.empty()) {
    tls_ = std::make_unique<TlsContext>(options_.tls_certificate, options_.tls_key);
  }
  listener_ = std::make_unique<Listener>(
      loop_.context(), options_.host, options_.port, tls_.get(),
      [this](std::unique_ptr<Transport> transport) { Accept(std::move(transport)); });
  listener_->Start();
  using std::chrono::milliseconds;
  const auto shortest = std::min(options_.idle_timeout, options_.ping_interval);
  loop_.Every(std::clamp(shortest / 4, milliseconds(10), milliseconds(1000)), [this] { Sweep(); });
}

HttpServer::~HttpServer() {
  // The loop's thread has been joined, so nothing else uses the connections.
  while (!connections_.empty()) (*connections_.begin())->Close();
}

void HttpServer::Accept(std::unique_ptr<Transport> transport) {
  ++counters_.accepted;
  const auto open = static_cast<int64_t>(connections_.size());
  const bool full = open >= options_.max_connections;
  if (full) ++counters_.refused;
  if (draining_ || open >= options_.max_connections + kRefused) return transport->Close();
  auto connection = std::make_shared<Connection>(this, std::move(transport));
  connections_.insert(connection);
  ++counters_.connections;
  full ? connection->Refuse() : connection->Start();
}

void HttpServer::Remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
  --counters_.connections;
  const std::lock_guard lock(mutex_);
  if (connections_.empty()) emptied_.notify_all();
}

void HttpServer::Sweep() {
  const auto now = std::chrono::steady_clock::now();
  // A copy: connections that close remove themselves from the set.
  const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) connection->CheckTime(now);
}

void HttpServer::Drain() {
  loop_.Post([this] {
    draining_ = true;
    listener_->Close();
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) connection->Drain();
  });
}

void HttpServer::Abort() {
  loop_.Post([this] {
    draining_ = true;
    listener_->Close();
    while (!connections_.empty()) (*connections_.begin())->Close();
  });
}

bool HttpServer::WaitUntilEmpty(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_for(lock, limit, [this] { return counters_.connections == 0; });
}

}  // namespace litecache::server
