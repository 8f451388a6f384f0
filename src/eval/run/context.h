// State shared by the suites' runners: configurations, engines, and messages to the user.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/run/configuration.h"
#include "eval/run/journal.h"
#include "litecache/engine.h"
#include "model/config.h"

namespace litecache::eval {

struct RunContext {
  RunInfo info;
  model::ModelConfig model;
  std::vector<Configuration> configurations;
  // The options of every configuration; parts of the keys.
  std::vector<nlohmann::ordered_json> options;
  std::function<std::unique_ptr<Engine>(const EngineOptions&)> load;
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> note;  // a message to the user
  int64_t max_batch = 64;
};

// OptionsJson() plus "profile_hash", a hash of the profile file in the options; "auto" is the file
// in the model's `directory`.
nlohmann::ordered_json DescribeOptions(const EngineOptions& options,
                                       const std::filesystem::path& directory);

// Identifies everything a result depends on: 16 hexadecimal digits.
std::string MakeKey(const RunContext& context, size_t configuration, const std::string& what);

// "16K", "1500".
std::string FormatTokens(int64_t tokens);

// Loads every configuration once, to report errors before hours of work: throws what its engine
// throws, and CapacityError if the memory does not hold `longest` tokens. Returns the model's
// description.
std::string CheckConfigurations(const RunContext& context, int64_t longest);

}  // namespace litecache::eval
