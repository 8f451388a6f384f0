// The file that an evaluation writes and reports read: JSON lines. A line is one of
//   {"type": "run", ...}            model, suite and settings; one per run of the program
//   {"type": "configuration", ...}  a name and its KV options
//   {"type": "prediction", ...}     one sample under one configuration
//   {"type": "window", ...}         one window of text under one configuration (perplexity)
//   {"type": "heads", ...}          counters by head of a configuration at a length
// Lines are only appended, each with a single write, so that a killed process loses at most the
// last one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::eval {

struct RunInfo {
  std::string suite;  // "ruler", "longbench", "perplexity", or a file
  std::string model;
  std::string fingerprint;  // of the model
  std::string description;  // "llama, 16.7M parameters, bf16"
  std::string dtype;
  bool chat = false;
  std::string text;  // for perplexity: the source of the text
};

// Activity of the KV cache. Sums over steps and heads, so that parts can be added.
struct KvSums {
  double lookups = 0, hits = 0;
  double verified = 0, corrected = 0;            // checks of lookups with a predicted query
  double miss_rows = 0, miss_bytes = 0;          // fetched by lookups with the actual query
  double prefetch_rows = 0, prefetch_bytes = 0;  // ... with a predicted query
  double spill_bytes = 0;                        // rows that left the recent window
  double prefill_bytes = 0;                      // rows of prompts, device to host
  double stream_bytes = 0;                       // whole contexts, activations, blocks
  double read_bytes = 0;                         // by attention
  double decode_tokens = 0;                      // number of tokens in these sums
  double recall_lookups = 0, recall_held = 0;
  double recall_refreshes = 0, recall_retrieved = 0;

  KvSums& operator+=(const KvSums& other);
  double HitRatio() const { return lookups > 0 ? hits / lookups : 0; }
  double MovedPerToken() const {
    return decode_tokens > 0 ? (miss_bytes + prefetch_bytes + stream_bytes) / decode_tokens : 0;
  }
};

// The activity between two snapshots of an engine's statistics.
KvSums Difference(const EngineStats& before, const EngineStats& now);

struct Prediction {
  std::string key;  // hash of model, configuration and sample
  std::string configuration;
  std::string task;
  int64_t length = 0;  // the requested length
  std::string id;      // unique within its length
  std::string prediction;
  std::vector<std::string> references;
  std::string metric;
  double score = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  std::string finish;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  std::vector<double> depths;  // of the needles, 0 to 1
  DraftStats drafts;
  // The engine's activity since the previous prediction. Samples run together, so only sums over a
  // configuration are meaningful.
  KvSums kv;
};

struct Window {
  std::string key;
  std::string configuration;
  int64_t length = 0;
  int64_t index = 0;
  int64_t end = 0;  // the window ends before this token of the text
  // Position of the token before the first scored one, fed as a decode step.
  int64_t first = 0;
  std::vector<float> nll;  // of the tokens first + 1, first + 2, ...
  // Compared with full attention at the same positions; empty for full attention itself.
  std::vector<float> kl;          // sum of p_full * log(p_full / p)
  std::vector<uint8_t> same_top;  // 1: the same most likely token
  // Earlier tokens, fed in chunks as a prompt: {upper end of the positions, tokens, sum of nll}.
  struct Bucket {
    int64_t end = 0;
    int64_t tokens = 0;
    double nll = 0;
  };
  std::vector<Bucket> prompt;
  double seconds = 0;
  KvSums kv;
};

// Counters by (layer, KV head).
struct HeadTable {
  std::string configuration;
  int64_t length = 0;
  int64_t layers = 0;
  int64_t kv_heads = 0;
  std::vector<kv::HeadCounters> heads;  // [layers][kv_heads]
};

struct Results {
  std::vector<RunInfo> runs;
  // In the order of the file.
  std::vector<std::pair<std::string, nlohmann::ordered_json>> configurations;
  std::vector<Prediction> predictions;
  std::vector<Window> windows;
  std::vector<HeadTable> heads;

  void Append(Results other);
};

nlohmann::ordered_json ToJson(const RunInfo& info);
nlohmann::ordered_json ToJson(const Prediction& prediction);
nlohmann::ordered_json ToJson(const Window& window);
nlohmann::ordered_json ToJson(const HeadTable& table);
nlohmann::ordered_json ConfigurationJson(const std::string& name,
                                         const nlohmann::ordered_json& options);

// Parses the lines of `text`; messages begin with `name` (a path) and the line's number. Throws
// FileError for malformed JSON, missing fields and wrong types. An incomplete last line, as a
// killed process leaves, is skipped; *complete_bytes (may be null) receives its position.
Results ParseResults(const std::string& text, const std::string& name, size_t* complete_bytes);
Results ReadResults(const std::filesystem::path& path);

// The upper end of the bucket of a position: 1024, 2048, 4096, ...
int64_t BucketEnd(int64_t position);

}  // namespace litecache::eval
