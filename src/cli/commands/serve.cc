// litecache serve: the model behind an HTTP server in OpenAI's API.
#include <fmt/core.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "base/logging.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/options.h"
#include "engine/ranks/ranks.h"
#include "server/server.h"

namespace litecache::cli {
namespace {

constexpr const char* kHttp = "HTTP";
constexpr const char* kLimits = "Limits";
constexpr const char* kSecurity = "Security";
constexpr const char* kKeyVariable = "LITECACHE_API_KEY";
constexpr uint64_t kSeed = 1;  // of random weights
// The limit after the last answer has been sent or cut off: the prefix store takes up to 10 s of
// it.
constexpr std::chrono::seconds kLongestEnd(15);

// Turns SIGINT and SIGTERM into events to wait for. Made before any other thread: threads inherit
// the signal mask, so none of them is interrupted.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    LC_CHECK(pthread_sigmask(SIG_BLOCK, &set_, &before_) == 0);
  }
  ~EndSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // The signal, or 0 if none arrived within the limit.
  int Wait(std::chrono::milliseconds limit) const {
    const timespec time{limit.count() / 1000, limit.count() % 1000 * 1000000};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

// Every connection uses a file descriptor; the default limit of 1024 may be below
// --max-connections.
void RaiseDescriptorLimit(int64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(connections) + 256;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    LogWarning("file descriptors for only {} of {} connections: raise the limit (ulimit -n)",
               limit.rlim_cur, connections);
  }
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

class ServeCommand final : public Command {
 public:
  std::string Name() const override { return "serve"; }
  std::string Summary() const override { return "Serve a model over HTTP, in OpenAI's API."; }
  std::string Notes() const override {
    return "Endpoints: /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, "
           "/v1/models, /health, /metrics, /props, /stats, /tokenize, /detokenize; "
           "docs/reference/server.md describes them. The address itself is a page with a chat "
           "and the state of the engine. SIGTERM or Ctrl-C lets running requests finish "
           "(--shutdown-timeout); a second one ends at once.";
  }
  std::vector<std::string> Examples() const override {
    return {"litecache serve --model DIR --port 8080",
            "litecache serve --shape llama3.1-8b    # random weights, to measure speed",
            "curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: "
            "application/json' \\",
            "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"};
  }
  std::vector<std::string> CommonOptions() const override {
    return {"--host", "--port", "--api-key", "--served-model-name", "--max-tokens", "--max-queue"};
  }

  void Declare(CLI::App& app) override {
    flags_.DeclareModel(app, false);
    flags_.DeclareShape(app);
    app.add_option("--served-model-name", names_,
                   "Name of the model in requests; can be given several times; default: the "
                   "directory's name, or org/name as --model has it")
        ->allow_extra_args(false)
        ->type_name("NAME");
    app.add_option("--chat-template", template_file_, "Use this template instead of the model's")
        ->type_name("FILE");
    DeclareHttp(app);
    DeclareLimits(app);
    DeclareSecurity(app);
    flags_.DeclareRun(app);
    // -1: at most 128 on a CPU, a quarter of prefill_chunk on a GPU. Eight streams beside a prompt
    // of 31K tokens (shipped model, one CPU thread): the 99th percentile of the time between their
    // tokens is 161 ms instead of 630 ms with 512, and the prompt takes no longer. On a GPU it
    // would: chunks that small leave most of the GPU idle, and each one transfers the rows of those
    // before it from the host.
    flags_.options.prefill_chunk_beside_decode = -1;
    flags_.DeclareGroup(app, "Scheduling");
    flags_.DeclarePrefix(app, true);
  }

  int Run(const std::vector<std::string>&) override {
    const EndSignals signals;
    if (flags_.shape.empty() && flags_.model.empty()) {
      throw UsageError("serve needs --model DIR, or --shape NAME for random weights");
    }
    server::ServerOptions options = Options();
    RaiseDescriptorLimit(options.http.max_connections);
    if (http_.host != "127.0.0.1" && http_.host != "localhost" && http_.host != "::1" &&
        options.service.keys.empty()) {
      LogWarning(
          "--host {}: anybody who can reach this address can use the model; set --api-key to "
          "require a key",
          http_.host);
    }
    // Before there are threads, which a copy of this process would not have.
    if (flags_.options.tensor_parallel > 1) engine::JoinRanks(flags_.options.tensor_parallel);
    auto server = std::make_unique<server::Server>(std::move(options));
    Note(fmt::format("listening on {}, loading {}\n", server->url(),
                     flags_.shape.empty() ? flags_.model : flags_.shape + " with random weights"));

    std::unique_ptr<server::ServedModel> model = AwaitModel(signals);
    // From here on a signal no longer ends the process at once. The server is announced as ready
    // only afterwards: a client that then sends a signal expects requests to be finished.
    const std::string ready = fmt::format(
        "serving {} ({}; context of {} tokens) at {}\n", model->name(),
        model->engine->Description(), model->engine->memory_plan().largest_context, server->url());
    server->SetModel(std::move(model));
    Note(ready);

    int signal = 0;
    while (signal == 0) signal = signals.Wait(std::chrono::hours(1));
    return Shutdown(std::move(server), signals);
  }

 private:
  void DeclareHttp(CLI::App& app) {
    app.add_option("--host", http_.host, "Address to listen on; 0.0.0.0: all of the machine's")
        ->type_name("ADDRESS")
        ->capture_default_str()
        ->group(kHttp);
    app.add_option("--port", http_.port, "Port to listen on; 0: any free one, which is printed")
        ->type_name("PORT")
        ->capture_default_str()
        ->group(kHttp);
    app.add_option("--tls-cert", http_.tls_certificate,
                   "Serve HTTPS with this certificate (PEM, with its chain)")
        ->type_name("FILE")
        ->group(kHttp);
    app.add_option("--tls-key", http_.tls_key, "Private key of --tls-cert (PEM)")
        ->type_name("FILE")
        ->group(kHttp);
    app.add_option(
           "--sse-ping-interval", ping_seconds_,
           "Seconds of silence after which a stream sends a comment, so that proxies keep it open")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.01, 86400.0).description(""))
        ->capture_default_str()
        ->group(kHttp);
    app.add_option("--shutdown-timeout", shutdown_seconds_,
                   "Seconds that running requests have to finish after SIGTERM; then they are "
                   "cancelled")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 86400.0).description(""))
        ->capture_default_str()
        ->group(kHttp);
  }

  void DeclareLimits(CLI::App& app) {
    app.add_option("--max-queue", max_queue_,
                   "Requests that may wait for the engine; further ones get 429 and Retry-After")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str()
        ->group(kLimits);
    app.add_option("--max-tokens", max_tokens_,
                   "Largest number of tokens of an answer; a request for more is refused; 0: what "
                   "the context leaves [0]")
        ->type_name("TOKENS")
        ->group(kLimits);
    app.add_option("--default-max-tokens", default_max_tokens_,
                   "Largest number of tokens of an answer if a chat request names none; memory for "
                   "all of them is reserved when it starts; 0: what the context leaves [4096]")
        ->type_name("TOKENS")
        ->group(kLimits);
    app.add_option("--max-prompt", max_prompt_,
                   "Largest number of tokens of a prompt; 0: what the context leaves [0]")
        ->type_name("TOKENS")
        ->group(kLimits);
    app.add_option("--max-samples", limits_.max_samples,
                   "Largest number of answers to a request: n times the number of its prompts")
        ->type_name("N")
        ->check(CLI::Range(1, 65536).description(""))
        ->capture_default_str()
        ->group(kLimits);
    app.add_option("--max-body", max_body_, "Size of a request's body [32MiB]")
        ->type_name("SIZE")
        ->group(kLimits);
    app.add_option("--max-header", max_header_, "Size of a request's header [64KiB]")
        ->type_name("SIZE")
        ->group(kLimits);
    app.add_option("--max-connections", http_.max_connections,
                   "Open connections; further ones get 503")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str()
        ->group(kLimits);
    app.add_option("--idle-timeout", idle_seconds_,
                   "Seconds without a byte after which a connection is closed: between requests, "
                   "within a request, and when a client does not read its answer")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 86400.0).description(""))
        ->capture_default_str()
        ->group(kLimits);
    app.add_flag("--strict-fields", strict_fields_,
                 "Refuse requests with fields that the server does not know, instead of ignoring "
                 "these fields")
        ->group(kLimits);
  }

  void DeclareSecurity(CLI::App& app) {
    AddRepeated(app, "--api-key", keys_,
                "Require this key (Authorization: Bearer KEY) for everything but /health; can be "
                "given several times")
        ->group(kSecurity);
    app.add_option("--api-key-file", key_files_,
                   "Read keys from this file, one per line; can be given several times")
        ->allow_extra_args(false)
        ->type_name("FILE")
        ->group(kSecurity);
    AddRepeated(app, "--cors-origin", origins_,
                "Let web pages of this origin call the server, e.g. https://example.org; *: all; "
                "can be given several times; default: none")
        ->group(kSecurity);
    AddRepeated(
        app, "--allowed-host", hosts_,
        "Answer requests that call the server by this name, e.g. llm.example.org, beside "
        "localhost and loopback addresses; *: any; can be given several times; default: any "
        "with a key, TLS or another --host, else none")
        ->group(kSecurity);
    app.add_flag("--trust-chat-template", limits_.trust_chat_template,
                 "Accept chat templates from requests")
        ->group(kSecurity);
  }

  server::ServerOptions Options() {
    server::ServerOptions options;
    options.http = http_;
    if (max_body_.value > 0) options.http.limits.body_bytes = max_body_.value;
    if (max_header_.value > 0) options.http.limits.header_bytes = max_header_.value;
    if (options.http.limits.header_bytes > (uint64_t{1} << 30)) {
      throw UsageError("--max-header is above 1GiB");
    }
    options.http.idle_timeout = Milliseconds(idle_seconds_);
    options.http.ping_interval = Milliseconds(ping_seconds_);
    options.service.max_queue = max_queue_;
    options.service.strict_fields = strict_fields_;
    options.service.cors_origins = origins_;
    options.service.allowed_hosts = hosts_;
    const char* environment = std::getenv(kKeyVariable);
    if (environment != nullptr && *environment == '\0' && keys_.empty()) {
      throw UsageError("{} is set, but empty: give it a key, or unset it to serve everybody",
                       kKeyVariable);
    }
    for (const auto& key : keys_) options.service.keys.Add(key);
    for (const auto& file : key_files_) options.service.keys.AddFile(file);
    limits_.max_tokens = max_tokens_.value;
    if (default_max_tokens_) limits_.default_max_tokens = default_max_tokens_->value;
    limits_.max_prompt = max_prompt_.value;
    return options;
  }

  std::unique_ptr<server::ServedModel> LoadModel() {
    flags_.WarnOfUnused();
    EngineOptions options = flags_.ToEngineOptions();
    auto engine = flags_.shape.empty() ? Engine::Load(flags_.model, options)
                                       : Engine::Random(flags_.shape, kSeed, options);
    // A model in the Hugging Face cache is in a directory named by a hash.
    if (names_.empty() && !flags_.shape.empty()) names_ = {flags_.shape};
    if (names_.empty() && !std::filesystem::is_directory(flags_.model)) names_ = {flags_.model};
    limits_.max_batch = engine->memory_plan().max_batch;
    auto model = server::MakeServedModel(std::move(engine), names_, template_file_, limits_);
    if (!model->chat) {
      LogWarning(
          "the model has no chat template: /v1/chat/completions refuses requests; "
          "--chat-template FILE gives it one");
    }
    return model;
  }

  // Loading cannot be interrupted: a signal during it ends the process.
  std::unique_ptr<server::ServedModel> AwaitModel(const EndSignals& signals) {
    auto loading = std::async(std::launch::async, [this] { return LoadModel(); });
    while (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      const int signal = signals.Wait(std::chrono::milliseconds(20));
      if (signal != 0) _exit(128 + signal);
    }
    return loading.get();
  }

  int Shutdown(std::unique_ptr<server::Server> server, const EndSignals& signals) {
    if (server->generating() > 0) {
      Note(fmt::format("finishing {} requests for up to {} s; a second signal ends at once\n",
                       server->generating(), shutdown_seconds_));
    }
    // A separate thread shuts the server down and nothing joins it: neither a second signal nor an
    // unexpectedly slow shutdown has to wait for it.
    std::atomic<bool> drained{false}, done{false};
    std::atomic<int> code{kOk};
    std::thread ending([&] {
      if (!server->Shutdown(Milliseconds(shutdown_seconds_))) code = kCutShort;
      drained = true;
      server.reset();
      done = true;
    });
    auto give_up = std::chrono::steady_clock::time_point::max();
    while (!done) {
      const int signal = signals.Wait(std::chrono::milliseconds(20));
      if (signal != 0) _exit(128 + signal);
      const auto now = std::chrono::steady_clock::now();
      if (drained && give_up == give_up.max()) give_up = now + kLongestEnd;
      if (now > give_up) {
        LogError("server: shutdown did not finish within {} s; exiting", kLongestEnd.count());
        _exit(code);
      }
    }
    ending.join();
    return code;
  }

  void Note(const std::string& text) const {
    if (quiet_) return;
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  EngineFlags flags_;
  std::vector<std::string> names_;
  std::string template_file_;
  server::HttpOptions http_;
  server::RequestLimits limits_;
  double ping_seconds_ = 15;
  double shutdown_seconds_ = 30;
  double idle_seconds_ = 60;
  int64_t max_queue_ = 256;
  bool strict_fields_ = false;
  TokenCount max_tokens_;
  std::optional<TokenCount> default_max_tokens_;
  TokenCount max_prompt_;
  ByteCount max_body_;
  ByteCount max_header_;
  std::vector<std::string> keys_;
  std::vector<std::string> key_files_;
  std::vector<std::string> origins_;
  std::vector<std::string> hosts_;
};

}  // namespace

std::unique_ptr<Command> MakeServeCommand() { return std::make_unique<ServeCommand>(); }

}  // namespace litecache::cli
