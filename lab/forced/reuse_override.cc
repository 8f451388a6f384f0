#include "lab/forced/reuse_override.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "lab/forced/reuse_override_cuda.h"
#include "ops/common/available_cuda.h"

namespace litecache::lab {

ReuseOverride::ReuseOverride(ForcedReuse reuse) : reuse_(std::move(reuse)) {
  LC_CHECK(reuse_.steps >= 1 && !reuse_.heads.empty());
  LC_CHECK(reuse_.checks.empty() || reuse_.checks.size() == reuse_.heads.size());
  LC_CHECK(reuse_.heads.size() == static_cast<size_t>(reuse_.steps) * reuse_.taus.size());
  if (reuse_.checks.empty()) reuse_.checks.assign(reuse_.heads.size(), {.hit = 1, .kept = -1});
}

const ops::ForcedHead& ReuseOverride::At(const HeadAtStep& at) const {
  const int64_t step = ops::ForcedStep(static_cast<int32_t>(at.past), static_cast<int32_t>(at.row),
                                       static_cast<int32_t>(reuse_.steps));
  const int64_t a_step = static_cast<int64_t>(reuse_.heads.size()) / reuse_.steps;
  return (at.verifying ? reuse_.checks
                       : reuse_.heads)[static_cast<size_t>(step * a_step + at.index)];
}

bool ReuseOverride::Hit(const HeadAtStep& at, bool found) const {
  const int32_t hit = At(at).hit;
  return hit < 0 ? found : hit == 1;
}

void ReuseOverride::ReplaceRows(Stream& stream, const SlotGeometry& geometry,
                                std::span<FoundRows> found) const {
  std::vector<ops::ForceOverlapWork> work;
  std::vector<std::vector<int32_t>> cached;
  work.reserve(found.size());
  cached.reserve(found.size());
  for (FoundRows& rows : found) {
    const ops::ForcedHead& forced = At(rows.at);
    if (forced.kept < 0) continue;
    rows.count = ops::ForcedRowCount(forced, static_cast<int32_t>(rows.most));
    std::vector<int32_t>& positions = cached.emplace_back();
    positions.reserve(static_cast<size_t>(rows.slots->used));
    for (int64_t slot = 0; slot < rows.slots->used; ++slot) {
      positions.push_back(geometry.Position(*rows.slots, geometry.begin + slot));
    }
    work.push_back({.kept = forced.kept,
                    .cached = positions.data(),
                    .cached_count = rows.slots->used,
                    .begin = rows.begin,
                    .end = rows.end,
                    .selected = rows.positions,
                    .count = rows.count});
  }
  if (!work.empty()) ops::ForceOverlap(stream, work);
}

std::unique_ptr<CudaResultOverride> ReuseOverride::ForCuda(CudaDevice& device) const {
  if constexpr (ops::cuda::kAvailable) return CreateCudaReuseOverride(device, reuse_);
  throw Unsupported("this build has no CUDA");
}

void ForceReuse(CachePlan* plan, ForcedReuse reuse) {
  auto* overridable = dynamic_cast<OverridablePlan*>(plan);
  if (overridable == nullptr) {
    throw Unsupported("reuse is forced on the lookups of policy litecache only");
  }
  overridable->SetOverride(std::make_shared<const ReuseOverride>(std::move(reuse)));
}

}  // namespace litecache::lab
