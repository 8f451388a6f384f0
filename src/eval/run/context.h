// What the suites' runners share: configurations, engines, and how to speak to the user.
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
  // What every configuration is made of; parts of the keys.
  std::vector<nlohmann::ordered_json> options;
  std::function<std::unique_ptr<Engine>(const KvOptions&)> load;
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> note;  // a line for people
  int64_t max_batch = 64;
};

// OptionsJson() and, as "profile_hash", the contents of the profile file that the options name;
// "auto" is the one in `directory`, the model's.
nlohmann::ordered_json DescribeOptions(const KvOptions& options,
                                       const std::filesystem::path& directory);

// Identifies what a result depends on: 16 hexadecimal digits.
std::string MakeKey(const RunContext& context, size_t configuration, const std::string& what);

// "16K", "1500".
std::string FormatTokens(int64_t tokens);

// Loads every configuration once and throws what its engine throws, and CapacityError for one
// whose memory does not hold `longest` tokens: hours before its turn comes. Returns the model's
// description.
std::string CheckConfigurations(const RunContext& context, int64_t longest);

}  // namespace litecache::eval
