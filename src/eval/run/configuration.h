// What is compared: named settings of the KV cache.
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
  KvOptions base;  // what the lists leave alone
  std::vector<std::string> policies = {"full", "litecache"};
  std::vector<std::string> retrievers;  // empty: the base's
  std::vector<std::string> budgets;     // empty: the base's
  // "NAME:key=value,key=value": one more configuration, the base with policy litecache and these
  // fields.
  std::vector<std::string> named;
};

// "full" once, every other policy with every retriever and budget, then the named ones. Throws
// InvalidArgument for what cannot be read, naming it, and for a name that occurs twice.
std::vector<Configuration> MakeConfigurations(const ConfigurationRequest& request);

// Every field as text, by name.
nlohmann::ordered_json OptionsJson(const KvOptions& options);

}  // namespace litecache::eval
