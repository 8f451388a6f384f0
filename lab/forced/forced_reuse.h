// Reuse forced on policy litecache by a measurement (lab/forced/force_reuse.h): a table with the
// result of each head at each step. Drawn from shares, or read from the trace of a model whose
// queries are similar.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/heads/head_plan.h"
#include "lab/forced/force_reuse.h"
#include "lab/namespaces.h"

namespace litecache::lab {

struct ForcedReuse {
  int64_t steps = 0;                   // after these it starts over
  std::vector<ops::ForcedHead> heads;  // [steps][layers][kv_heads]
  // The same for the checks of lookups with predicted queries; empty: every check hits.
  std::vector<ops::ForcedHead> checks;
  int64_t kv_heads = 0;
  std::vector<float> taus;  // [layers][kv_heads]: the heads' own thresholds
};

struct ReuseShares {
  std::optional<double> hit_ratio;  // of lookups; if not set: the real results
  // Share of a refresh's rows that have a slot; if not set: the real one.
  std::optional<double> overlap;
  int64_t steps = 64;
  uint64_t seed = 1;
};

// Each step has its share of hits, rounded so that all steps together are exact to one lookup; the
// offloaded heads of `heads` that hit are drawn anew at every step. Throws InvalidArgument for a
// share outside [0, 1].
ForcedReuse DrawReuse(const HeadPlan& heads, const ReuseShares& shares);

// One without results, for these heads.
ForcedReuse EmptyReuse(const HeadPlan& heads, int64_t steps);

}  // namespace litecache::lab
