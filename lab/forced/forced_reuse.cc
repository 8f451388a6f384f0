#include "lab/forced/forced_reuse.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"

namespace litecache::lab {
namespace {

void CheckShare(const char* name, const std::optional<double>& share) {
  if (share && !(*share >= 0 && *share <= 1)) {
    throw InvalidArgument("{} = {} is not between 0 and 1", name, *share);
  }
}

}  // namespace

ForcedReuse EmptyReuse(const HeadPlan& heads, int64_t steps) {
  ForcedReuse reuse;
  reuse.steps = steps;
  reuse.kv_heads = heads.kv_heads;
  for (const HeadSettings& head : heads.heads) reuse.taus.push_back(head.tau);
  reuse.heads.resize(static_cast<size_t>(steps) * heads.heads.size());
  return reuse;
}

ForcedReuse DrawReuse(const HeadPlan& plan, const ReuseShares& shares) {
  CheckShare("hit ratio", shares.hit_ratio);
  CheckShare("overlap", shares.overlap);
  LC_CHECK(shares.steps >= 1);
  const size_t a_step = plan.heads.size();
  std::vector<size_t> offloaded;
  for (size_t i = 0; i < a_step; ++i) {
    if (!plan.heads[i].resident) offloaded.push_back(i);
  }
  ForcedReuse reuse = EmptyReuse(plan, shares.steps);
  ops::ForcedHead every;
  if (shares.hit_ratio) every.hit = 0;
  if (shares.overlap) {
    every.kept = static_cast<int32_t>(std::lround(*shares.overlap * ops::ForcedHead::kWhole));
  }
  reuse.heads.assign(static_cast<size_t>(shares.steps) * a_step, every);
  if (!shares.hit_ratio) return reuse;
  std::mt19937_64 random(shares.seed);
  const auto hits_by = [&](int64_t step) {
    return std::llround(*shares.hit_ratio * static_cast<double>(offloaded.size()) *
                        static_cast<double>(step));
  };
  for (int64_t step = 0; step < shares.steps; ++step) {
    // A hand-written Fisher-Yates shuffle: std::shuffle differs between platforms.
    for (size_t i = offloaded.size(); i > 1; --i) {
      std::swap(offloaded[i - 1], offloaded[random() % i]);
    }
    const auto hits = static_cast<size_t>(hits_by(step + 1) - hits_by(step));
    for (size_t i = 0; i < hits; ++i) {
      reuse.heads[static_cast<size_t>(step) * a_step + offloaded[i]].hit = 1;
    }
  }
  return reuse;
}

}  // namespace litecache::lab
