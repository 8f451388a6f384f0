// Reuse that a measurement forces on policy litecache (lab/forced/force_reuse.h): a table of what
// each head does at each step. Drawn from shares, or read from a trace of a model whose queries are
// similar.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/heads/head_plan.h"
#include "lab/forced/force_reuse.h"

namespace litecache::kv {

struct ForcedReuse {
  int64_t steps = 0;                   // then from the first again
  std::vector<ops::ForcedHead> heads;  // [steps][layers][kv_heads]
};

struct ReuseShares {
  std::optional<double> hit_ratio;  // of lookups; without: as looked up
  std::optional<double> overlap;    // of a refresh's rows: have a slot; without: as selected
  int64_t steps = 64;
  uint64_t seed = 1;
};

// Each step has its share of hits, rounded so that all steps together have it to one lookup; which
// heads of `heads` that are offloaded hit is drawn anew at every step. Throws InvalidArgument for a
// share outside of [0, 1].
ForcedReuse DrawReuse(const HeadPlan& heads, const ReuseShares& shares);

}  // namespace litecache::kv
