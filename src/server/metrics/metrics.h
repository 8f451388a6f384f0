// The counters of the server, and the text of /metrics.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "litecache/engine.h"
#include "server/http/http_server.h"
#include "server/metrics/exposition.h"

namespace litecache::server {

// Used by the loop's thread only.
struct Metrics {
  // (route, status) -> answers.
  std::map<std::pair<std::string, int>, uint64_t> answers;
  // Finish reason ("stop", "length", "cancelled", "error") -> samples.
  std::map<std::string, uint64_t> finished;
  uint64_t rejected = 0;  // 429
  Histogram first_token{
      {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}};
  Histogram token_gap{
      {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5}};
  Histogram duration{{0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}};
  Histogram queue{{0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600}};
  Histogram prompt_tokens{{16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}};
};

// requests: generating requests without an answer so far, including waiting ones.
std::string MetricsText(const Metrics& metrics, const HttpCounters& http, const EngineStats& engine,
                        int64_t requests);

}  // namespace litecache::server
