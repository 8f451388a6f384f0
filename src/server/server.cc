#include "server/server.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/logging.h"
#include "io/gguf.h"
#include "io/gguf_names.h"
#include "server/api/error.h"
#include "tokenizer/placeholder.h"

namespace litecache::server {
namespace {

// Time for answers to report that they were cancelled.
constexpr std::chrono::milliseconds kLastWords(2000);

}  // namespace

std::unique_ptr<ServedModel> MakeServedModel(std::unique_ptr<Engine> engine,
                                             std::vector<std::string> names,
                                             const std::string& template_file,
                                             const RequestLimits& limits) {
  auto model = std::make_unique<ServedModel>();
  model->engine = std::move(engine);
  const tokenizer::Tokenizer& tokenizer = model->engine->tokenizer();
  model->grammars = std::make_unique<grammar::GrammarCache>(tokenizer);
  model->names = std::move(names);
  if (model->names.empty()) {
    auto directory = model->engine->directory().lexically_normal();
    if (!directory.has_filename()) directory = directory.parent_path();
    model->names.push_back(io::IsGguf(directory) ? io::GgufModelName(directory)
                                                 : directory.filename().string());
  }
  if (!template_file.empty()) {
    model->chat.emplace(tokenizer, tokenizer::ChatEncoder::LoadTemplate("", template_file));
  } else if (model->engine->directory().empty()) {
    model->chat.emplace(tokenizer, tokenizer::PlaceholderTemplate());
  } else if (auto found = tokenizer::ChatTemplate::FindIn(model->engine->directory())) {
    model->chat.emplace(tokenizer, std::move(*found));
  }
  model->limits = limits;
  model->created = std::time(nullptr);
  return model;
}

Server::Server(ServerOptions options) : tls_(!options.http.tls_certificate.empty()) {
  const bool open = !tls_ && options.service.keys.empty();
  const bool listed = !options.service.allowed_hosts.empty();
  // Made before the port is taken, so that its error comes first.
  HostCheck check(options.service.allowed_hosts);
  service_ = std::make_unique<Service>(std::move(options.service), loop_);
  http_ = std::make_unique<HttpServer>(
      loop_, std::move(options.http),
      [this](const std::shared_ptr<Exchange>& exchange) { service_->Handle(exchange); },
      [this](const HttpRequest& request) { return service_->access().CheckHeader(request); },
      [](int status, const std::string& message) {
        return StatusError(status, message).Response();
      },
      [this](const Exchange& exchange) {
        const std::chrono::duration<double> took =
            std::chrono::steady_clock::now() - exchange.started();
        LogInfo("{} {} {} {:.3f} s", Printable(exchange.request().method),
                Printable(exchange.request().path), exchange.status(), took.count());
        service_->OnFinished(exchange);
      });
  service_->SetCounters(&http_->counters());
  if (listed || (open && IsLoopback(http_->address())))
    service_->access().SetHostCheck(std::move(check));
  loop_.Start();
}

Server::~Server() {
  // Order of destruction: the loop, which gives work to the workers; the workers; then what they
  // used. The engine goes before the loop's memory, because its thread wakes exchanges.
  loop_.Stop();
  service_->StopWorkers();
  http_.reset();
  service_->DropModel();
}

void Server::SetModel(std::unique_ptr<ServedModel> model) { service_->SetModel(std::move(model)); }

std::string Server::url() const {
  const std::string& host = http_->address();
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", tls_ ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "",
                     http_->port());
}

uint16_t Server::port() const { return http_->port(); }

bool Server::Shutdown(std::chrono::milliseconds limit) {
  service_->SetDraining();
  http_->Drain();
  if (http_->WaitUntilEmpty(limit)) return true;
  const bool cancelled = service_->generating() > 0 || service_->preparing() > 0;
  service_->CancelAll();
  http_->WaitUntilEmpty(kLastWords);
  http_->Abort();
  http_->WaitUntilEmpty(kLastWords);
  return !cancelled;
}

const HttpCounters& Server::http_counters() const { return http_->counters(); }
int64_t Server::generating() const { return service_->generating(); }

}  // namespace litecache::server
