// Options that several commands share, each declared once: name, default, help text. The help and
// the tables of docs/reference/cli.md are made from these declarations.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/kv_flags.h"
#include "cli/values.h"
#include "litecache/engine.h"

namespace litecache::cli {

// An option that may be given several times, one value each time. A comma or a bracket in a value
// is part of it.
CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& help);

// --log-level, --quiet, --no-progress: every command has them.
struct GeneralOptions {
  std::string log_level = "warn";
  bool quiet = false;
  bool no_progress = false;

  void Declare(CLI::App& app);
  // Sets up logging and progress bars. Throws InvalidArgument for an unknown level.
  void Apply() const;
};

// --model and how to run it.
struct EngineFlags {
  std::string model;
  std::string dtype = "auto";
  std::string device = "auto";
  int threads = 0;
  ByteCount memory;
  TokenCount max_context;
  Share weights_on_device{1};
  int64_t max_batch = 64;
  int64_t prefill_chunk = 0;
  std::string prefix_cache = "off";
  std::string prefix_store;
  ByteCount prefix_store_size{uint64_t{20} << 30};
  KvFlags kv;

  void DeclareModel(CLI::App& app, bool required);
  void DeclareThreads(CLI::App& app);
  void DeclareRun(CLI::App& app);
  // --prefix-cache and where else to keep prefixes: for commands that run more than one request.
  void DeclarePrefix(CLI::App& app, const std::string& cache);
  // Throws UsageError when --model is missing.
  EngineOptions ToEngineOptions() const;
};

// What the checkpoint's generation_config.json asks for, as Transformers reads it: sampling where
// do_sample is true, else greedy.
SamplingParams ModelDefaults(const Engine& engine);

// Sampling and when to stop.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<int> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<uint64_t> seed;
  std::optional<TokenCount> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  bool ignore_eos = false;

  void Declare(CLI::App& app, const std::string& max_tokens_help);
  // The model's defaults with what was given on the command line. `wants_sampling`: several
  // different samples are asked for.
  SamplingParams Merge(const SamplingParams& defaults, bool wants_sampling) const;
  // Stop strings, stop tokens and ignore_eos.
  void ApplyStops(Request* request) const;
};

}  // namespace litecache::cli
