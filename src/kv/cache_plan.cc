#include "kv/cache_plan.h"

#include <utility>

namespace litecache::kv {

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile) {
  options.Validate();  // knows the policies' names
  if (options.policy == "full") return PlanFullCache(layout);
  return PlanLiteCache(layout, options, std::move(profile));
}

}  // namespace litecache::kv
