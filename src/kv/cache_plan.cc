#include "kv/cache_plan.h"

#include <utility>

namespace litecache::kv {

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile,
                                         DeviceType device) {
  options.Validate();  // knows the policies' names
  if (options.policy == "full") return PlanFullCache(layout);
  return PlanLiteCache(layout, options, std::move(profile), device);
}

}  // namespace litecache::kv
