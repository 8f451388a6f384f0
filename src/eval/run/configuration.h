// The compared configurations: named settings of the KV cache.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "litecache/kv_options.h"

namespace litecache::eval {

struct Configuration {
  std::string name;  // "full", "hata-10%", "fixed"
  KvOptions kv;
};

struct ConfigurationRequest {
  KvOptions base;  // settings not varied by the lists
  std::vector<std::string> policies = {"full", "litecache"};
  std::vector<std::string> retrievers;  // empty: the one of `base`
  std::vector<std::string> budgets;     // empty: the one of `base`
  // "NAME:key=value,key=value": an additional configuration, `base` with policy litecache and these
  // fields.
  std::vector<std::string> named;
};

// "full" once, every other policy with every retriever and budget, then the named ones. Throws an
// InvalidArgument that names a malformed entry or a duplicate name.
std::vector<Configuration> MakeConfigurations(const ConfigurationRequest& request);

// Every field as text, by name.
nlohmann::ordered_json OptionsJson(const KvOptions& options);

}  // namespace litecache::eval
