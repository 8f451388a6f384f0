// A trace at another shape: maps the shape's layers, heads and steps to recorded ones.
//
// Layers: the nearest in relative depth. A predicted layer keeps the number of layers to its
// source, and the source its number up to kEarlySource: what the input of the first layers predicts
// depends on their number, not on the model's depth. KV heads: head modulo the trace's number; a
// query head by its position in the group. Steps: the recording forwards and backwards, so that
// neighbours stay neighbours; heads that share a recorded one start at different steps, so that all
// steps cost about the same. Positions: blocks of 128 tokens keep the wanted rows within them; a
// context with more blocks repeats each, one with fewer leaves some out, so that a row keeps its
// relative position.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kv/cache.h"
#include "kv/heads/head_plan.h"
#include "kv/heads/profile.h"
#include "kv/litecache/result_override.h"
#include "lab/forced/forced_reuse.h"
#include "lab/namespaces.h"
#include "lab/trace/trace.h"
#include "ops/reuse/qsac_lookup.h"
#include "ops/slots/slot_windows.h"

namespace litecache::lab {

class TraceMap {
 public:
  static constexpr int64_t kBlock = 128;

  TraceMap(const Trace& trace, const Layout& layout);

  int64_t Layer(int64_t layer) const;
  // Where the queries of `layer` predicted from the input of `source` come from; source -1: the
  // actual queries, of Layer(layer). Throws InvalidArgument if the trace has no predicted queries.
  struct Place {
    int64_t layer = 0;
    int64_t distance = 0;  // TraceQuery::distance
  };
  static constexpr int64_t kEarlySource = 2;
  Place Predicted(int64_t layer, int64_t source) const;
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
  int64_t trace_distances_, trace_layers_, trace_kv_heads_, trace_group_, trace_steps_;
};

// Head importance and similarities of adjacent steps for this shape, which determine thresholds,
// aggregation and the resident heads.
Profile ProfileOf(const Trace& trace, const Layout& layout);

// QSAC of one head on recorded steps.
class HeadReplay {
 public:
  struct Settings {
    TraceMap::Place place;
    int64_t kv_head = 0;                   // of the trace
    std::vector<int64_t> q_heads;          // of the trace, one for each of the group
    std::optional<PredictionCheck> check;  // as OverridablePlan::prediction_check()
    ops::Aggregation aggregation = ops::Aggregation::kImportance;
    const float* importance = nullptr;  // [group]
    float tau = 0;
    // SlotWindows::slots_factor; by_need: refreshes have the trace's numbers of rows.
    double slots_factor = 1;
    bool by_need = false;
  };
  // Holds the rows of step `first`. `trace` must outlive this.
  HeadReplay(const Trace& trace, Settings settings, int64_t first);

  struct Result {
    ops::ForcedHead lookup;
    ops::ForcedHead check;  // undecided without one
  };
  // The trace's step that comes next.
  Result Step(int64_t step);

 private:
  ops::ForcedHead LookUp(TraceQuery q, float tau);
  // Puts the query's rows into slots as HeadSlots does; returns how many had one.
  int64_t Refresh(TraceQuery q);

  const Trace& trace_;
  Settings settings_;
  TraceQuery label_;            // the query whose rows are selected
  std::vector<int32_t> slots_;  // positions
  size_t next_victim_ = 0;
};

// Runs QSAC on the recorded steps with the plan's sources, thresholds and numbers of slots: which
// lookup hits at which step, how many rows a refresh has and which share of them already has a
// slot, and the same for the checks of predicted queries. Throws InvalidArgument as
// TraceMap::Predicted(), and for windows by need if the trace has fixed numbers of rows.
ForcedReuse ReplayReuse(const Trace& trace, const Layout& layout, const HeadPlan& heads,
                        const ops::SlotWindows<int64_t>& windows, ops::Aggregation aggregation,
                        std::optional<PredictionCheck> check);

}  // namespace litecache::lab
