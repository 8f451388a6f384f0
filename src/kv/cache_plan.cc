#include "kv/cache_plan.h"

#include "base/error.h"

namespace litecache::kv {

// NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it
void CachePlan::Impose(std::shared_ptr<const ImposedReuse>) {
  throw Unsupported("reuse is imposed on the lookups of policy litecache only");
}

}  // namespace litecache::kv
