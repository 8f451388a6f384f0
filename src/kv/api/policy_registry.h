// The KV policies that a program knows, by name: the product's from the start, and those that it
// registers (litecache-lab: the systems that LiteCache is compared with).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/cache_plan.h"
#include "kv/heads/profile.h"
#include "litecache/kv_options.h"

namespace litecache::kv {

struct Policy {
  std::string name;           // the value of --kv-policy and of KvOptions::policy
  std::string summary;        // what it does, a line for the help
  bool uses_profile = false;  // whether `plan` reads the profile
  // What it reads of the KV options that policies share (litecache/options.h), by name. Those that
  // the product's policies read are written in src/kv/api/option_table.cc.
  std::vector<std::string> options = {};
  // The rows of its own settings: SettingsOf() (kv/api/policy_settings.h).
  std::vector<Option<KvOptions>> settings = {};
  // The options are valid. profile: null without one. device: what the cache will be created on.
  // Throws InvalidArgument or Unsupported for what the policy cannot do.
  std::unique_ptr<CachePlan> (*plan)(const Layout& layout, const KvOptions& options,
                                     std::shared_ptr<const Profile> profile,
                                     DeviceType device) = nullptr;
};

// Adds a policy of a name that there is none of. Called before the first use of any policy and of
// KvOptionTable(): references and spans that were handed out do not survive it.
void RegisterPolicy(Policy policy);

// All policies, the product's first, the others in the order in which they were registered.
const std::vector<Policy>& Policies();

// Throws InvalidArgument, with the names there are.
const Policy& FindPolicy(std::string_view name);

// What is wrong with a name that FindPolicy() does not find, for messages of one's own; empty where
// it does.
std::string WhyNoPolicy(std::string_view name);

}  // namespace litecache::kv
