// Reuse forced on policy litecache by a measurement (lab/forced/forced_reuse.h), replacing the
// results of its lookups and selections.
#pragma once

#include <memory>
#include <span>

#include "kv/cache_plan.h"
#include "kv/litecache/result_override.h"
#include "lab/forced/forced_reuse.h"
#include "lab/namespaces.h"

namespace litecache::lab {

class ReuseOverride final : public ResultOverride {
 public:
  explicit ReuseOverride(ForcedReuse reuse);

  bool Hit(const HeadAtStep& at, bool found) const override;
  void ReplaceRows(Stream& stream, const SlotGeometry& geometry,
                   std::span<FoundRows> found) const override;
  // Throws Unsupported if this build has no CUDA.
  std::unique_ptr<CudaResultOverride> ForCuda(CudaDevice& device) const override;

 private:
  const ops::ForcedHead& At(const HeadAtStep& at) const;

  ForcedReuse reuse_;
};

// Applies to the caches that the plan creates afterwards. Throws Unsupported for every policy but
// litecache.
void ForceReuse(CachePlan* plan, ForcedReuse reuse);

}  // namespace litecache::lab
