// The KV policies of a program, by name: the product's are always registered; a program may add its
// own (litecache-lab adds the systems that LiteCache is compared with).
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
  std::string summary;        // what it does: one line of the help
  bool uses_profile = false;  // whether `plan` reads the profile
  // Names of the shared KV options (litecache/options.h) that this policy reads. For the product's
  // policies src/kv/api/option_table.cc lists them instead.
  std::vector<std::string> options = {};
  // Options of this policy alone, made by SettingsOf() (kv/api/policy_settings.h).
  std::vector<Option<KvOptions>> settings = {};
  // Plans a cache from valid options. profile: null if there is none. device: where the cache will
  // be created. Throws InvalidArgument or Unsupported for what the policy cannot do.
  std::unique_ptr<CachePlan> (*plan)(const Layout& layout, const KvOptions& options,
                                     std::shared_ptr<const Profile> profile,
                                     DeviceType device) = nullptr;
};

// Adds a policy under a new name. Must be called before the first use of any policy and of
// KvOptionTable(): it invalidates references and spans returned earlier.
void RegisterPolicy(Policy policy);

// All policies: the product's first, then the others in the order of their registration.
const std::vector<Policy>& Policies();

// Throws InvalidArgument for an unknown name; the message lists the known ones.
const Policy& FindPolicy(std::string_view name);

// The error text of FindPolicy() for an unknown name, for callers that write their own message;
// empty for a known name.
std::string WhyNoPolicy(std::string_view name);

}  // namespace litecache::kv
