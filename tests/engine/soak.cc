// A soak test: clients submit short and long requests and cancel some of them in the queue, in
// prefill and in decode. At the end nothing may be left: no page in use, and host and GPU memory as
// at the start.
//   litecache-soak --model models/litecache-demo-16m [--device cuda] [--seconds 40]
#include "engine/soak.h"

#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/logging.h"
#include "base/units.h"
#include "device/cuda/allocated.h"
#include "device/cuda/cuda_devices.h"
#include "litecache/engine.h"
#include "model/config.h"
#include "test_seed.h"

namespace litecache {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model;
  std::string device = "auto";
  double seconds = 40;
  int clients = 24;
  int64_t context = 4096;
  bool shared_gpu = false;
  std::string transfer = "auto";
  std::string prefetch = "auto";
  std::vector<std::string> policies = {"full", "litecache"};
};

// The values in which a leak would show.
struct Memory {
  int64_t resident = 0;  // bytes of this process
  int64_t pinned = 0;
  int64_t gpu = 0;       // bytes that this process has allocated on GPUs
  int64_t gpu_free = 0;  // free bytes, whichever process uses the rest
};

int64_t StatusBytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

Memory Measure() {
  malloc_trim(0);
  Memory memory;
  memory.resident = StatusBytes("VmRSS");
  memory.pinned = StatusBytes("VmPin") + StatusBytes("VmLck");
  memory.gpu = static_cast<int64_t>(AllocatedGpuMemory());
  const CudaDevices found = FindCudaDevices();
  if (!found.devices.empty()) {
    memory.gpu_free = static_cast<int64_t>(found.devices.front().free_memory);
  }
  return memory;
}

uint64_t Unsigned(int64_t bytes) { return static_cast<uint64_t>(std::max<int64_t>(bytes, 0)); }

std::string ToString(const Memory& memory) {
  std::string text = fmt::format("resident {}, pinned {}", FormatBytes(Unsigned(memory.resident)),
                                 FormatBytes(Unsigned(memory.pinned)));
  if (memory.gpu_free > 0) {
    text += fmt::format(", GPU {} taken, {} free", FormatBytes(Unsigned(memory.gpu)),
                        FormatBytes(Unsigned(memory.gpu_free)));
  }
  return text;
}

struct Counts {
  std::atomic<int64_t> requests{0}, finished{0}, refused{0}, tokens{0};
  std::atomic<int64_t> cancelled_queued{0}, cancelled_prefill{0}, cancelled_decode{0};
};

class Soak {
 public:
  Soak(const Settings& settings, const std::string& policy, bool prefixes)
      : settings_(settings), name_(policy + (prefixes ? ", prefixes shared" : "")) {
    EngineOptions options;
    options.device = settings.device;
    options.max_context = settings.context;
    options.max_batch = 16;  // fewer than clients, so that some wait
    options.prefill_chunk = 256;
    options.memory = uint64_t{1} << 30;
    options.show_progress = false;
    options.kv.policy = policy;
    options.kv.transfer = settings.transfer;
    options.kv.prefetch = settings.prefetch;
    options.kv.device_memory = uint64_t{1} << 30;
    options.prefix_cache = prefixes;
    engine_ = Engine::Load(settings.model, options);
    auto random = testing::TestRandom(1);
    for (int i = 0; i < 8; ++i) {  // the beginnings of prompts
      texts_.push_back(RandomTokens(random, settings.context));
    }
  }

  // Runs clients for that many seconds; afterwards everything must be free again.
  void Run(double seconds, uint64_t salt) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::vector<std::thread> clients;
    for (int i = 0; i < settings_.clients; ++i) {
      clients.emplace_back([this, i, end, salt] {
        auto random = testing::TestRandom(salt * 1000 + static_cast<uint64_t>(i) + 2);
        try {
          while (Clock::now() < end) OneRequest(random);
        } catch (const std::exception& error) {
          Fail(error.what());
        }
      });
    }
    for (std::thread& client : clients) client.join();
    // Requests cancelled last end with their current step.
    EngineStats stats = engine_->Stats();
    for (int i = 0; i < 5000 && (stats.running > 0 || stats.waiting > 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      stats = engine_->Stats();
    }
    if (stats.running > 0 || stats.waiting > 0) {
      Fail(fmt::format("{} requests run and {} wait that nobody waits for", stats.running,
                       stats.waiting));
    }
    if (stats.kv.used.device != stats.prefix.bytes.device ||
        stats.kv.used.host != stats.prefix.bytes.host) {
      Fail(fmt::format("pages in use: {} and {}, of which prefixes hold {} and {}",
                       FormatBytes(stats.kv.used.device), FormatBytes(stats.kv.used.host),
                       FormatBytes(stats.prefix.bytes.device),
                       FormatBytes(stats.prefix.bytes.host)));
    }
  }

  void Report() const {
    const EngineStats stats = engine_->Stats();
    std::cout << fmt::format(
                     "{}: {} requests, {} finished, cancelled {} in the queue, {} in prefill, {} "
                     "in decode, {} refused; {} tokens, {} steps; peak KV {} and {}; {} prefix "
                     "hits, {} evictions",
                     name_, counts_.requests.load(), counts_.finished.load(),
                     counts_.cancelled_queued.load(), counts_.cancelled_prefill.load(),
                     counts_.cancelled_decode.load(), counts_.refused.load(), counts_.tokens.load(),
                     stats.steps, FormatBytes(stats.kv.peak.device),
                     FormatBytes(stats.kv.peak.host), stats.prefix.hits, stats.prefix.evictions)
              << std::endl;
  }

  const std::string& name() const { return name_; }
  bool failed() const { return failed_; }
  // Whether some case did not occur although there were enough requests.
  bool incomplete() const {
    return counts_.requests > 300 && (counts_.finished == 0 || counts_.cancelled_queued == 0 ||
                                      counts_.cancelled_decode == 0 ||
                                      counts_.cancelled_prefill == 0 || counts_.refused == 0);
  }

 private:
  std::vector<int32_t> RandomTokens(std::mt19937_64& random, int64_t count) const {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    const auto vocab = static_cast<uint64_t>(engine_->config().vocab);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
    return tokens;
  }

  Request RandomRequest(std::mt19937_64& random) const {
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    Request request;
    const int64_t longest = below(6) == 0 ? settings_.context - 200 : 200;
    const int64_t length = 1 + below(longest);
    request.prompt = texts_[static_cast<size_t>(below(static_cast<int64_t>(texts_.size())))];
    request.prompt.resize(static_cast<size_t>(length));
    const int64_t own = std::min(length, 1 + below(40));
    const std::vector<int32_t> tail = RandomTokens(random, own);
    std::copy(tail.begin(), tail.end(), request.prompt.end() - own);
    request.max_tokens = 1 + below(below(4) == 0 ? 150 : 20);
    request.n = below(5) == 0 ? 3 : 1;
    request.ignore_eos = true;
    SamplingParams& sampling = request.sampling;
    sampling.temperature = below(3) == 0 ? 0 : 0.8;
    if (below(4) == 0) sampling.top_k = 50;
    if (below(4) == 0) sampling.top_p = 0.9;
    if (below(6) == 0) sampling.min_p = 0.05;
    if (below(6) == 0) sampling.repetition_penalty = 1.1;
    if (below(6) == 0) sampling.presence_penalty = 0.2;
    request.logprobs = below(8) == 0 ? 3 : below(8) == 0 ? 0 : -1;
    request.client = random() % 5;
    return request;
  }

  void OneRequest(std::mt19937_64& random) {
    Request request = RandomRequest(random);
    ++counts_.requests;
    if (random() % 50 == 0) {  // too long for the context: rejected at no cost
      request.max_tokens = settings_.context;
      try {
        engine_->Submit(request);
        Fail("a request that does not fit was accepted");
      } catch (const CapacityError&) {
        ++counts_.refused;
      }
      return;
    }
    const uint64_t fate = random() % 6;
    std::shared_ptr<RequestHandle> handle;
    std::mutex mutex;
    bool cancel_wanted = false;
    if (fate == 1) {  // cancelled in prefill, after the first chunk
      const auto longer = static_cast<size_t>(std::min<int64_t>(1000, settings_.context / 2));
      request.prompt.resize(std::max(request.prompt.size(), longer), 1);
      request.on_prefill = [&](int64_t, int64_t) {
        const std::lock_guard lock(mutex);
        cancel_wanted = true;
        if (handle != nullptr) handle->Cancel();
      };
    }
    const auto total = static_cast<uint64_t>(request.max_tokens * request.n);
    auto submitted = engine_->Submit(request);
    {
      const std::lock_guard lock(mutex);
      handle = submitted;
      if (cancel_wanted) handle->Cancel();
    }
    if (fate == 0) handle->Cancel();
    const uint64_t patience = fate == 2 || fate == 3 ? random() % total : total + 1;
    uint64_t tokens = 0;
    bool cancelled = false;
    while (const auto chunk = submitted->Next()) {
      tokens += chunk->tokens.size();
      cancelled = cancelled || chunk->finish == FinishReason::kCancelled;
      if (chunk->finish == FinishReason::kError) Fail("a request failed: " + chunk->error);
      if (tokens >= patience) {
        if (fate == 2) break;  // dropping the handle cancels as well
        submitted->Cancel();
      }
    }
    counts_.tokens += static_cast<int64_t>(tokens);
    if (fate == 2 && tokens >= patience) {
      ++counts_.cancelled_decode;
    } else if (!cancelled) {
      ++counts_.finished;
      if (tokens != total) Fail(fmt::format("{} tokens came of {}", tokens, total));
    } else if (tokens > 0) {
      ++counts_.cancelled_decode;
    } else if (submitted->Stats().queue_seconds > 0) {
      ++counts_.cancelled_prefill;
    } else {
      ++counts_.cancelled_queued;
    }
    // The callback refers to local variables, and is not called once the request has ended.
    const std::lock_guard lock(mutex);
    handle.reset();
    submitted.reset();
  }

  void Fail(const std::string& message) {
    if (!failed_.exchange(true)) std::cerr << name_ << ": FAILED: " << message << std::endl;
  }

  Settings settings_;
  std::string name_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> texts_;
  Counts counts_;
  std::atomic<bool> failed_{false};
};

// The maximum difference between two engines: the allocator's leftovers. A leak of a page per
// request or a graph per step is far larger after thousands of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kResidentSlack = int64_t{1} << 40;  // sanitizers keep freed memory
#else
constexpr int64_t kResidentSlack = int64_t{64} << 20;
#endif
constexpr int64_t kGpuSlack = int64_t{32} << 20;

bool Compare(const std::string& name, bool shared_gpu, const Memory& before, const Memory& after) {
  const bool same = after.resident - before.resident <= kResidentSlack &&
                    after.pinned - before.pinned <= 0 && after.gpu == before.gpu &&
                    (shared_gpu || before.gpu_free - after.gpu_free <= kGpuSlack);
  std::cout << name << ": before " << ToString(before) << "; after " << ToString(after)
            << (same ? "" : ": FAILED: memory is missing") << std::endl;
  return same;
}

bool Run(const Settings& settings) {
  bool good = true;
  const double share = settings.seconds / static_cast<double>(2 * settings.policies.size());
  for (const std::string& policy : settings.policies) {
    for (const bool prefixes : {false, true}) {
      // The first engine loads what a process loads once; the second must leave nothing behind.
      std::string name;
      Memory before;
      for (const bool first : {true, false}) {
        {
          Soak soak(settings, policy, prefixes);
          soak.Run(first ? 0.15 * share : 0.85 * share, first ? 1 : 2);
          good = good && !soak.failed();
          name = soak.name();
          if (!first) {
            soak.Report();
            if (soak.incomplete()) {
              std::cout << name << ": FAILED: not everything happened" << std::endl;
              good = false;
            }
          }
        }
        if (first) before = Measure();
      }
      good = Compare(name, settings.shared_gpu, before, Measure()) && good;
    }
  }
  return good;
}

}  // namespace

int RunSoak(int argc, char** argv) {
  Settings settings;
  CLI::App app("Submits and cancels requests for a while and looks for what is left behind");
  app.add_option("--model", settings.model, "Model directory")->required();
  app.add_option("--device", settings.device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "Time for all of it")->capture_default_str();
  app.add_option("--clients", settings.clients, "Requests at a time")->capture_default_str();
  app.add_option("--context", settings.context, "Longest request")->capture_default_str();
  app.add_flag("--shared-gpu", settings.shared_gpu,
               "Others use the GPU, too: what is free there says nothing");
  app.add_option("--transfer", settings.transfer, "As litecache's option");
  app.add_option("--prefetch", settings.prefetch, "As litecache's option");
  app.add_option("--policies", settings.policies, "KV policies")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    InitLogging("warn");
    const bool good = Run(settings);
    std::cout << (good ? "nothing is left behind" : "something is wrong") << std::endl;
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace litecache
