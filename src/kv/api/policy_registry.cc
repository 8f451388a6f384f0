#include "kv/api/policy_registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kv/heads/profile.h"
#include "kv/step/prefill_options.h"

namespace litecache::kv {
namespace {

struct Registry {
  std::vector<Policy> policies;
  size_t of_product = 0;                // count; they come first in `policies`
  std::vector<std::string_view> names;  // names of `policies`

  explicit Registry(std::vector<Policy> all)
      : policies(std::move(all)), of_product(policies.size()) {
    CollectNames();
  }

  void CollectNames() {
    names.clear();
    for (const Policy& policy : policies) names.push_back(policy.name);
  }
};

// NOLINTBEGIN(performance-unnecessary-value-param): Policy::plan gives the profile away
std::vector<Policy> ProductPolicies() {
  return {
      {.name = "full",
       .summary = "every row on the device, all attended",
       .plan =
           [](const Layout& layout, const KvOptions& options, std::shared_ptr<const Profile>,
              DeviceType device) {
             return PlanFullCache(layout, device, SparsePrefillOf(options));
           }},
      {.name = "litecache",
       .summary = "rows on the host, of which the device keeps what the last queries needed, or on "
                  "a GPU that has room for all",
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
  };
}
// NOLINTEND(performance-unnecessary-value-param)

Registry& TheRegistry() {
  static Registry registry(ProductPolicies());
  return registry;
}

std::vector<Policy>::const_iterator Find(std::string_view name) {
  const std::vector<Policy>& policies = TheRegistry().policies;
  return std::find_if(policies.begin(), policies.end(),
                      [&](const Policy& policy) { return policy.name == name; });
}

}  // namespace

void RegisterPolicy(Policy policy) {
  LC_CHECK(!policy.name.empty() && policy.plan != nullptr);
  Registry& registry = TheRegistry();
  LC_CHECK(WhyNoPolicy(policy.name) != "", "policy {} is registered twice", policy.name);
  registry.policies.push_back(std::move(policy));
  registry.CollectNames();  // the push_back may have moved the strings
}

const std::vector<Policy>& Policies() { return TheRegistry().policies; }

const Policy& FindPolicy(std::string_view name) {
  const auto found = Find(name);
  if (found != Policies().end()) return *found;
  throw InvalidArgument("KV options: policy = {}", WhyNoPolicy(name));
}

std::string WhyNoPolicy(std::string_view name) {
  if (Find(name) != Policies().end()) return "";
  const Registry& registry = TheRegistry();
  const bool more = registry.policies.size() == registry.of_product;
  return fmt::format(
      "'{}' is not one of {}{}", name, fmt::join(registry.names, ", "),
      more ? "; the policies that LiteCache is compared with are in litecache-lab" : "");
}

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device) {
  options.Validate();
  if (!layout.uniform()) return PlanMixedCache(layout, options, device);
  return FindPolicy(options.policy).plan(layout, options, std::move(profile), device);
}

}  // namespace litecache::kv

namespace litecache {

std::span<const std::string_view> KvPolicies() { return kv::TheRegistry().names; }

}  // namespace litecache
