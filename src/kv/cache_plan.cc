#include "kv/cache_plan.h"

#include "base/error.h"

namespace litecache::kv {

std::unique_ptr<CachePlan> MakeCachePlan(const Layout& layout, const KvOptions& options,
                                         std::shared_ptr<const Profile> profile) {
  options.Validate();
  if (options.policy == "full") return PlanFullCache(layout);
  throw InvalidArgument("KV policy '{}' is not known; there is: full", options.policy);
}

}  // namespace litecache::kv
