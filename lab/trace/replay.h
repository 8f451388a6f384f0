// A trace at another shape: maps the shape's layers, heads and steps to recorded ones.
//
// Layers: the nearest in relative depth. KV heads: head modulo the trace's number; a query head by
// its position in the group. Steps: the recording forwards and backwards, so that neighbours stay
// neighbours; heads that share a recorded one start at different steps, so that all steps cost
// about the same. Positions: blocks of 128 tokens keep the wanted rows within them; a context with
// more blocks repeats each, one with fewer leaves some out, so that a row keeps its relative
// position.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kv/cache.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/profile.h"
#include "lab/forced/forced_reuse.h"
#include "lab/trace/trace.h"
#include "ops/reuse/qsac_lookup.h"

namespace litecache::kv {

class TraceMap {
 public:
  static constexpr int64_t kBlock = 128;

  TraceMap(const Trace& trace, const Layout& layout);

  int64_t Layer(int64_t layer) const;
  int64_t Head(int64_t kv_head) const { return kv_head % trace_kv_heads_; }
  // The trace's query head for the j-th of the group.
  int64_t QueryHead(int64_t kv_head, int64_t j) const {
    return Head(kv_head) * trace_group_ + j % trace_group_;
  }
  // Number of steps after which everything repeats.
  int64_t period() const { return 2 * trace_steps_ - 2; }
  // The trace's step for a head at step `t` of the measurement, any t >= 0.
  int64_t Step(int64_t layer, int64_t kv_head, int64_t t) const;

 private:
  int64_t layers_, kv_heads_;
  int64_t trace_layers_, trace_kv_heads_, trace_group_, trace_steps_;
};

// Head importance and similarities of adjacent steps for this shape, which determine thresholds,
// aggregation and the resident heads.
Profile ProfileOf(const Trace& trace, const Layout& layout);

// Runs QSAC on the recorded similarities with the plan's thresholds and this aggregation: which
// head hits at which step, and the share of a refresh's rows that were already held.
ForcedReuse ReplayReuse(const Trace& trace, const Layout& layout, const HeadPlan& heads,
                        ops::Aggregation aggregation);

}  // namespace litecache::kv
