#include "server/service.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/work_limit.h"
#include "server/api/endpoints.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/information.h"
#include "server/api/json.h"
#include "server/api/stats.h"
#include "server/generation.h"
#include "server/page/page.h"

namespace litecache::server {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr const char* kEnding = "the server is shutting down";
// Takes a worker 50 ms or more to prepare; the usual conversation is far smaller.
constexpr size_t kHeavyBody = 256 << 10;

void Reply(Exchange& exchange, const Json& body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(body);
  exchange.Respond(std::move(response));
}

void RespondError(Exchange& exchange, const ApiError& error) {
  exchange.Respond(error.Response(ErrorShapeOf(exchange.request().path)));
}

// Accepts parameters, as in "application/json; charset=utf-8".
bool IsJson(std::string_view type) {
  std::string lower(type.substr(0, type.find(';')));
  while (lower.ends_with(' ')) lower.pop_back();
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "application/json" || lower.ends_with("+json");
}

// Counts a request until this is destroyed.
class Count {
 public:
  explicit Count(std::atomic<int64_t>* counter) : counter_(counter) { ++*counter_; }
  ~Count() { --*counter_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  std::atomic<int64_t>* counter_;
};

struct OpenRequest {
  OpenRequest(std::atomic<int64_t>* counter, std::shared_ptr<void> of_client)
      : count(counter), client(std::move(of_client)) {}
  Count count;
  std::shared_ptr<void> client;
  MemoryBudget::Share answer;
};

}  // namespace

Service::Service(ServiceOptions options, IoLoop& loop)
    : options_(std::move(options)),
      loop_(loop),
      access_(options_.keys, options_.cors_origins),
      admission_(options_.max_queue, options_.answer_bytes, metrics_),
      workers_(std::make_unique<WorkerPool>(options_.workers)) {}

Service::~Service() = default;

void Service::SetModel(std::unique_ptr<ServedModel> model) {
  // std::function copies its tasks; the model cannot be copied.
  auto shared = std::make_shared<std::unique_ptr<ServedModel>>(std::move(model));
  loop_.Post([this, shared] { model_ = std::move(*shared); });
}

void Service::CancelAll() {
  ending_ = true;
  loop_.Post([this] {
    cancelling_ = true;
    for (Generation* generation : generations_) generation->Cancel();
  });
}

void Service::StopWorkers() {
  ending_ = true;
  workers_->Stop();
}

void Service::Register(Generation* generation) {
  generations_.insert(generation);
  if (cancelling_) generation->Cancel();
}

void Service::Unregister(Generation* generation) { generations_.erase(generation); }

const std::vector<Service::Route>& Service::Routes() {
  static const std::vector<Route> routes = [] {
    std::vector<Route> all = {
        {"GET", "/health", &Service::Health},
        {"GET", "/ping", &Service::Health},
        {"GET", "/version", &Service::Version},
        {"GET", "/slots", &Service::Slots},
        {"GET", "/metrics", &Service::MetricsPage},
        {"GET", "/props", &Service::Props},
        {"GET", "/stats", &Service::StatsPage},
        {"GET", "/v1/models", &Service::Models},
        {"POST", "/v1/embeddings", &Service::Embeddings},
    };
    for (const JsonEndpoint& endpoint : JsonEndpoints()) {
      all.push_back({"POST", endpoint.path,
                     [&endpoint](Service& service, const std::shared_ptr<Exchange>& exchange) {
                       endpoint.read_job != nullptr ? service.Generate(exchange, endpoint)
                                                    : service.Compute(exchange, endpoint);
                     }});
    }
    return all;
  }();
  return routes;
}

std::string Service::RoutePath(const std::string& path) {
  const std::string versioned = "/v1" + path;
  const bool alias = versioned.starts_with(kModelPrefix) ||
                     std::any_of(Routes().begin(), Routes().end(),
                                 [&](const Route& route) { return route.path == versioned; });
  return alias ? versioned : path;
}

void Service::Handle(const std::shared_ptr<Exchange>& exchange) {
  access_.AddCorsHeaders(*exchange);
  try {
    Dispatch(exchange);
  } catch (...) {
    RespondError(*exchange, ToApiError(std::current_exception()));
  }
}

void Service::Dispatch(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  access_.CheckHost(request);
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  // A preflight request carries no key, and its answer reveals nothing.
  if (access_.IsPreflight(request)) {
    HttpResponse response;
    response.status = 204;
    return exchange->Respond(std::move(response));
  }
  access_.CheckKey(request);
  if (IsPage(request.path)) {
    if (method == "GET") return exchange->Respond(PageFile(request.path));
    exchange->AddHeader("Allow", "GET");
    throw StatusError(405, fmt::format("{} takes GET, not {}", request.path, request.method));
  }
  const Route* route = nullptr;
  std::string allowed;
  const std::string path = RoutePath(request.path);
  for (const Route& one : Routes()) {
    if (one.path != path) continue;
    if (one.method == method) route = &one;
    allowed += allowed.empty() ? std::string(one.method) : ", " + std::string(one.method);
  }
  const bool one_model = path.starts_with(kModelPrefix);
  if (one_model) allowed = "GET";
  if (allowed.empty()) throw StatusError(404, fmt::format("there is no endpoint {}", request.path));
  if (route == nullptr && !(one_model && method == "GET")) {
    exchange->AddHeader("Allow", allowed);
    throw StatusError(405,
                      fmt::format("{} takes {}, not {}", request.path, allowed, request.method));
  }
  if (method == "POST" && !IsJson(request.Header("content-type"))) {
    // This also keeps out web pages of other origins, which may send plain text without a
    // preflight.
    throw StatusError(415, "the body must be sent as 'Content-Type: application/json'");
  }
  if (!IsHealth(path) && model_ == nullptr) {
    throw ApiError(503, "server_error", "loading", "", "the model is being loaded").RetryAfter(1);
  }
  if (one_model) return OneModel(exchange);
  route->call(*this, exchange);
}

void Service::OnFinished(const Exchange& exchange) {
  const std::string path = RoutePath(exchange.request().path);
  const auto& routes = Routes();
  const bool known = std::any_of(routes.begin(), routes.end(),
                                 [&](const Route& route) { return route.path == path; });
  // Arbitrary paths must not grow the table without bound.
  const char* other = IsPage(path) ? "page" : "other";
  ++metrics_.answers[{known ? path : other, exchange.status()}];
}

void Service::Compute(const std::shared_ptr<Exchange>& exchange, const JsonEndpoint& endpoint) {
  const uint64_t client = access_.ClientOf(exchange->request());
  CheckQueue(client);
  auto count = std::make_shared<Count>(&preparing_);
  Prepare(exchange, client, [exchange, count, compute = endpoint.compute, model = model_.get()] {
    HttpResponse response;
    response.body = Dump(compute(ParseBody(exchange->TakeBody()), *model));
    exchange->Respond(std::move(response));
  });
}

void Service::CheckQueue(uint64_t client) {
  const int64_t waiting = preparing_ + model_->engine->Stats().waiting;
  admission_.CheckQueue(client, waiting, generations_.size());
}

void Service::Prepare(const std::shared_ptr<Exchange>& exchange, uint64_t client,
                      std::function<void()> task) {
  const bool heavy = exchange->request().body.size() > kHeavyBody;
  workers_->Post(client, heavy, [this, exchange, heavy, task = std::move(task)] {
    const auto cancelled = [&] { return exchange->abandoned() || ending_; };
    if (cancelled()) return RespondError(*exchange, StatusError(503, kEnding));
    try {
      const WorkLimit limit(options_.prepare_limit, cancelled);
      const StrictFields strict(options_.strict_fields);
      task();
    } catch (...) {
      RespondError(*exchange, ToApiError(std::current_exception()));
    }
#ifdef __GLIBC__
    // Otherwise the process keeps the memory that large values have freed: 120 MiB were measured.
    if (heavy) malloc_trim(0);
#endif
  });
}

void Service::Generate(const std::shared_ptr<Exchange>& exchange, const JsonEndpoint& endpoint) {
  const uint64_t client = access_.ClientOf(exchange->request());
  CheckQueue(client);
  // Shared, because std::function copies its tasks, and the count must end at a defined moment.
  auto preparing = std::make_shared<std::optional<Count>>(std::in_place, &preparing_);
  auto generating = std::make_shared<OpenRequest>(&generating_, admission_.Enter(client));
  Prepare(exchange, client,
          [this, exchange, client, preparing, generating, read = endpoint.read_job,
           model = model_.get()] {
            auto job = read(ParseBody(exchange->TakeBody()), *model);
            for (Request& request : job.requests) request.client = client;
            generating->answer = admission_.ReserveAnswer(job);
            auto generation =
                std::make_shared<Generation>(exchange, *this, std::move(job), generating);
            // The engine counts it from here on: counting it twice would fill the queue too early.
            preparing->reset();
            generation->Submit(*model->engine);
            exchange->Attach(std::move(generation));
          });
}

void Service::Health(const std::shared_ptr<Exchange>& exchange) {
  const char* status = draining_ ? "draining" : model_ == nullptr ? "loading" : "ok";
  Reply(*exchange, {{"status", status}}, status == std::string_view("ok") ? 200 : 503);
}

void Service::StatsPage(const std::shared_ptr<Exchange>& exchange) {
  const std::chrono::duration<double> up = std::chrono::steady_clock::now() - started_;
  Reply(*exchange, StatsJson(*model_, up.count(), generating_));
}

void Service::MetricsPage(const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = MetricsText(metrics_, *counters_, model_->engine->Stats(), generating_);
  exchange->Respond(std::move(response));
}

void Service::Models(const std::shared_ptr<Exchange>& exchange) {
  Json models = Json::array();
  for (const auto& name : model_->names) models.push_back(ModelJson(*model_, name));
  Reply(*exchange, {{"object", "list"}, {"data", std::move(models)}});
}

void Service::OneModel(const std::shared_ptr<Exchange>& exchange) {
  const std::string name = RoutePath(exchange->request().path).substr(kModelPrefix.size());
  const auto& names = model_->names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw ApiError(404, "invalid_request_error", "model_not_found", "model",
                   fmt::format("the model '{}' is not served here", name));
  }
  Reply(*exchange, ModelJson(*model_, name));
}

void Service::Props(const std::shared_ptr<Exchange>& exchange) {
  Reply(*exchange, PropsJson(*model_));
}

void Service::Version(const std::shared_ptr<Exchange>& exchange) {
  Reply(*exchange, {{"version", LC_VERSION}});
}

void Service::Slots(const std::shared_ptr<Exchange>& exchange) {
  Reply(*exchange, SlotsJson(*model_));
}

void Service::Embeddings(const std::shared_ptr<Exchange>&) {
  // Not 501, which clients take for a failure and try again.
  throw StatusError(404, "this server generates text; it does not compute embeddings");
}

}  // namespace litecache::server
