#include "kv/cache_plan.h"

#include <utility>

#include "base/error.h"

namespace litecache::kv {

// NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it
void CachePlan::Impose(std::shared_ptr<const ImposedReuse>) {
  throw Unsupported("reuse is imposed on the lookups of policy litecache only");
}

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device) {
  options.Validate();  // knows the policies' names
  if (options.policy == "full") return PlanFullCache(layout, device);
  if (options.policy == "flexgen") return PlanFlexGenCache(layout, options, device);
  if (options.policy == "kvpr") return PlanKvprCache(layout, options, device);
  if (options.policy == "streaming") return PlanStreamingCache(layout, options, device);
  if (options.policy == "retroinfer") return PlanRetroCache(layout, options, device);
  if (options.policy == "infinigen") {
    return PlanInfiniGenCache(layout, options, std::move(profile), device);
  }
  if (options.policy == "pqcache") return PlanPqCache(layout, options, device);
  return PlanLiteCache(layout, options, std::move(profile), device);
}

}  // namespace litecache::kv
