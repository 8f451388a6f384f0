// Options that several commands share, each declared once: name, default, help text. The help and
// the tables of docs/reference/cli.md are generated from these declarations.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/values.h"
#include "litecache/engine.h"

namespace litecache::cli {

// An option that may be given several times, one value each time. A comma or a bracket in a value
// is part of it.
CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& help);

// --options, --log-level, --quiet and --no-progress, which every command has.
struct GeneralOptions {
  std::string options_file;  // read before the command's options are (option_sources.h)
  std::string log_level = "warn";
  bool quiet = false;
  bool no_progress = false;

  void Declare(CLI::App& app);
  // Sets up logging and progress bars. Throws InvalidArgument for an unknown level.
  void Apply() const;
};

// --model and the flags of the engine's option table.
struct EngineFlags {
  std::string model;
  std::string shape;               // of DeclareShape; empty: `model` is used
  std::string weights = "random";  // of the shape
  EngineOptions options;

  void DeclareModel(CLI::App& app, bool required);
  // For commands that run a published shape instead of a model.
  void DeclareShape(CLI::App& app);
  // Declares the options under a heading of the table.
  void DeclareGroup(CLI::App& app, std::string_view group);
  // Declares the options with these names.
  void DeclareSome(CLI::App& app, std::initializer_list<std::string_view> names);
  // Declares the engine's options and the KV cache's.
  void DeclareRun(CLI::App& app);
  // Declares --prefix-cache and related options, for commands that run more than one request.
  void DeclarePrefix(CLI::App& app, bool on);
  // Throws InvalidArgument for options that cannot be combined.
  EngineOptions ToEngineOptions() const;
  // Options of the KV cache that were given but have no effect on the policy. For commands that run
  // one policy.
  std::vector<std::string> Unused() const;
  // Logs a warning about them.
  void WarnOfUnused() const;

 private:
  const CLI::App* app_ = nullptr;
};

// Sampling and stop conditions.
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

  // default_max_tokens: the value if --max-tokens is not given.
  void Declare(CLI::App& app, int64_t default_max_tokens);
  // The model's defaults, overridden by the command line. `wants_sampling`: several different
  // samples are requested.
  SamplingParams Merge(const SamplingParams& defaults, bool wants_sampling) const;
  // Sets stop strings, stop tokens and ignore_eos.
  void ApplyStops(Request* request) const;
};

}  // namespace litecache::cli
