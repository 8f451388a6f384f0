#include "kv/policy_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace litecache::kv {
namespace {

struct Registry {
  std::vector<Policy> policies;
  std::vector<std::string_view> names;  // of `policies`

  explicit Registry(std::vector<Policy> all) : policies(std::move(all)) { CollectNames(); }

  void CollectNames() {
    names.clear();
    for (const Policy& policy : policies) names.push_back(policy.name);
  }
};

std::vector<Policy> ProductPolicies() {
  return {
      {.name = "full",
       .summary = "every row on the device, all attended",
       .plan = [](const Layout& layout, const KvOptions&, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanFullCache(layout, device); }},
      {.name = "litecache",
       .summary = "rows on the host, the device keeps what the last queries needed",
       .uses_profile = true,
       .plan = PlanLiteCache},
      {.name = "kvpr",
       .summary = "rows on the host, brought for every layer, some of them recomputed",
       .plan = [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanKvprCache(layout, options, device); }},
      {.name = "streaming",
       .summary = "the first and the last rows only",
       .plan = [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanStreamingCache(layout, options, device); }},
      {.name = "flexgen",
       .summary = "rows on the host, brought for every layer",
       .plan = [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanFlexGenCache(layout, options, device); }},
      {.name = "infinigen",
       .summary = "rows chosen a layer ahead",
       .uses_profile = true,
       .plan = PlanInfiniGenCache},
      {.name = "pqcache",
       .summary = "rows chosen by quantized keys, and a block cache",
       .plan = [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanPqCache(layout, options, device); }},
      {.name = "retroinfer",
       .summary = "rows on the host in clusters, the best attended, the next ones estimated",
       .plan = [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
                  DeviceType device) { return PlanRetroCache(layout, options, device); }},
  };
}

Registry& TheRegistry() {
  static Registry registry(ProductPolicies());
  return registry;
}

}  // namespace

void RegisterPolicy(Policy policy) {
  LC_CHECK(!policy.name.empty() && policy.plan != nullptr);
  Registry& registry = TheRegistry();
  const auto known = std::find_if(registry.policies.begin(), registry.policies.end(),
                                  [&](const Policy& p) { return p.name == policy.name; });
  if (known != registry.policies.end()) {
    *known = std::move(policy);
  } else {
    registry.policies.push_back(std::move(policy));
  }
  registry.CollectNames();  // the vector's strings may have moved
}

const std::vector<Policy>& Policies() { return TheRegistry().policies; }

const Policy& FindPolicy(std::string_view name) {
  const std::vector<Policy>& policies = Policies();
  const auto found = std::find_if(policies.begin(), policies.end(),
                                  [&](const Policy& policy) { return policy.name == name; });
  if (found != policies.end()) return *found;
  std::string names;
  for (const Policy& policy : policies) names += (names.empty() ? "" : ", ") + policy.name;
  throw InvalidArgument("KV options: policy = '{}' is not one of {}", name, names);
}

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device) {
  options.Validate();
  return FindPolicy(options.policy).plan(layout, options, std::move(profile), device);
}

}  // namespace litecache::kv

namespace litecache {

std::span<const std::string_view> KvPolicies() { return kv::TheRegistry().names; }

}  // namespace litecache
