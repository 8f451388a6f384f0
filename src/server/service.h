// The service: routes, and the requests that generate.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/access.h"
#include "server/admission.h"
#include "server/api/endpoints.h"
#include "server/api/model.h"
#include "server/auth.h"
#include "server/http/exchange.h"
#include "server/http/io_loop.h"
#include "server/metrics/metrics.h"
#include "server/worker_pool.h"

namespace litecache::server {

class Generation;

struct ServiceOptions {
  ApiKeys keys;  // empty: no key is required
  // Origins of web pages that may call, "*" for any; empty: browsers block other pages.
  std::vector<std::string> cors_origins;
  // Host names that requests may use for this machine, besides its loopback names. If empty, any
  // name is accepted when keys or TLS protect the server or when it listens on a non-loopback
  // address.
  std::vector<std::string> allowed_hosts;
  int64_t max_queue = 256;  // requests that wait for the engine
  int workers = 2;          // threads that read and tokenize requests
  // Bytes that all answers together may occupy outside the engine.
  int64_t answer_bytes = int64_t{512} << 20;
  bool strict_fields = false;  // refuse unknown fields instead of ignoring them
  // Processor time that a worker may spend on one request before the request is refused.
  std::chrono::milliseconds prepare_limit{10'000};
};

// Functions without a remark are called on the loop's thread.
class Service {
 public:
  Service(ServiceOptions options, IoLoop& loop);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Any thread. Until it is called, everything except /health answers 503.
  void SetModel(std::unique_ptr<ServedModel> model);
  // Any thread. /health answers 503 from then on.
  void SetDraining() { draining_ = true; }
  // Any thread: requests that are generating or about to.
  int64_t generating() const { return generating_; }
  // Any thread: requests with a worker or waiting for one.
  int64_t preparing() const { return preparing_; }
  // Any thread. Cancels all generation; each answer reports it.
  void CancelAll();
  // Called after the loop has stopped. Workers finish their current task.
  void StopWorkers();
  // Called when no thread runs any more.
  void DropModel() { model_.reset(); }

  void SetCounters(const HttpCounters* counters) { counters_ = counters; }
  void Handle(const std::shared_ptr<Exchange>& exchange);
  Access& access() { return access_; }
  void OnFinished(const Exchange& exchange);

  Metrics& metrics() { return metrics_; }
  void Register(Generation* generation);
  void Unregister(Generation* generation);
  const ServedModel* model() const { return model_.get(); }

 private:
  struct Route {
    std::string_view method;
    std::string_view path;
    std::function<void(Service&, const std::shared_ptr<Exchange>&)> call;
  };
  static const std::vector<Route>& Routes();
  // The path of the route that a path calls: "/chat/completions" is "/v1/chat/completions".
  static std::string RoutePath(const std::string& path);

  void Dispatch(const std::shared_ptr<Exchange>& exchange);
  // Answers with what the endpoint computes on a worker, or with the error it throws.
  void Compute(const std::shared_ptr<Exchange>& exchange, const JsonEndpoint& endpoint);
  // Reads the request on a worker and submits it; the answer is a Generation.
  void Generate(const std::shared_ptr<Exchange>& exchange, const JsonEndpoint& endpoint);
  // Runs `task` on a worker within the limits of a request; answers with the error that it throws.
  void Prepare(const std::shared_ptr<Exchange>& exchange, uint64_t client,
               std::function<void()> task);
  // Throws ApiError 429.
  void CheckQueue(uint64_t client);

  void Health(const std::shared_ptr<Exchange>& exchange);
  void StatsPage(const std::shared_ptr<Exchange>& exchange);
  void MetricsPage(const std::shared_ptr<Exchange>& exchange);
  void Models(const std::shared_ptr<Exchange>& exchange);
  void OneModel(const std::shared_ptr<Exchange>& exchange);
  void Props(const std::shared_ptr<Exchange>& exchange);
  void Version(const std::shared_ptr<Exchange>& exchange);
  void Slots(const std::shared_ptr<Exchange>& exchange);
  void Embeddings(const std::shared_ptr<Exchange>& exchange);

  const ServiceOptions options_;
  IoLoop& loop_;
  const HttpCounters* counters_ = nullptr;
  std::unique_ptr<ServedModel> model_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> ending_{false};
  bool cancelling_ = false;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  Metrics metrics_;
  Access access_;
  Admission admission_;
  std::unordered_set<Generation*> generations_;
  std::atomic<int64_t> preparing_{0};   // requests with a worker or waiting for one
  std::atomic<int64_t> generating_{0};  // these, and generating requests
  std::unique_ptr<WorkerPool> workers_;
};

}  // namespace litecache::server
