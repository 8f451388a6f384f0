// The compared configurations: named settings of the engine and its KV cache.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "litecache/engine.h"

namespace litecache::eval {

struct Configuration {
  std::string name;  // "full", "hata-10%", "fixed"
  EngineOptions engine;
};

struct ConfigurationRequest {
  EngineOptions base;  // settings not varied by the lists
  std::vector<std::string> policies = {"full", "litecache"};
  std::vector<std::string> retrievers;  // empty: the one of `base`
  std::vector<std::string> budgets;     // empty: the one of `base`
  // "NAME:key=value,key=value": an additional configuration, `base` with policy litecache and these
  // fields.
  std::vector<std::string> named;
  bool kv_only = false;  // whether fields are options of the KV cache alone, not of the engine
};

// "full" once, every other policy with every retriever and budget, then the named ones. Throws an
// InvalidArgument that names a malformed entry or a duplicate name.
std::vector<Configuration> MakeConfigurations(const ConfigurationRequest& request);

// What answers depend on, as text, by name: every option of the KV cache, and the engine's that
// concern weights, arithmetic and drafts.
nlohmann::ordered_json OptionsJson(const EngineOptions& options);

}  // namespace litecache::eval
