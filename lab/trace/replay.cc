#include "lab/trace/replay.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "lab/forced/reuse_override.h"
#include "lab/trace/replays_trace.h"

namespace litecache::lab {

bool ReplayTrace(CachePlan* plan, std::shared_ptr<const Trace> trace) {
  if (auto* replays = dynamic_cast<ReplaysTrace*>(plan)) {
    replays->Replay(std::move(trace));
    return true;
  }
  auto* overridable = dynamic_cast<OverridablePlan*>(plan);
  if (overridable == nullptr) return false;
  overridable->SetOverride(std::make_shared<const ReuseOverride>(
      ReplayReuse(*trace, plan->layout(), *plan->heads(), overridable->windows(),
                  overridable->aggregation(), overridable->prediction_check())));
  return true;
}

TraceMap::TraceMap(const Trace& trace, const Layout& layout)
    : layers_(layout.layers),
      kv_heads_(layout.kv_heads),
      trace_distances_(trace.distances),
      trace_layers_(trace.layers),
      trace_kv_heads_(trace.kv_heads),
      trace_group_(trace.group()),
      trace_steps_(trace.steps) {}

int64_t TraceMap::Layer(int64_t layer) const {
  if (layers_ == 1) return 0;
  // Rounded to nearest.
  return (2 * layer * (trace_layers_ - 1) + layers_ - 1) / (2 * (layers_ - 1));
}

TraceMap::Place TraceMap::Predicted(int64_t layer, int64_t source) const {
  if (source < 0) return {Layer(layer), 0};
  if (trace_distances_ == 0) {
    throw InvalidArgument(
        "the trace has no predicted queries: its model has {} layers; use --prefetch off",
        trace_layers_);
  }
  const int64_t distance = std::min(layer - source, trace_distances_);
  const int64_t least = distance + std::min(source, kEarlySource);
  return {std::clamp(Layer(layer), std::min(least, trace_layers_ - 1), trace_layers_ - 1),
          distance};
}

int64_t TraceMap::Step(int64_t layer, int64_t kv_head, int64_t t) const {
  // A different start for every head, spread over the period.
  const int64_t offset = (layer * kv_heads_ + kv_head) * period() / (layers_ * kv_heads_);
  const int64_t at = (t + offset) % period();
  return at < trace_steps_ ? at : period() - at;
}

Profile ProfileOf(const Trace& trace, const Layout& layout) {
  const TraceMap map(trace, layout);
  const int64_t group = layout.q_heads / layout.kv_heads;
  Profile p;
  p.layers = layout.layers;
  p.q_heads = layout.q_heads;
  p.kv_heads = layout.kv_heads;
  p.head_dim = layout.head_dim;
  p.corpus = trace.Describe();
  std::vector<float> cosines(static_cast<size_t>(group));
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const int64_t from = map.Layer(layer);
      for (int64_t j = 0; j < group; ++j) {
        p.importance.push_back(
            trace.importance[static_cast<size_t>(from * trace.q_heads + map.QueryHead(head, j))]);
      }
      const float* importance = p.importance.data() + p.importance.size() - group;
      double sum = 0;
      std::vector<double> sums(static_cast<size_t>(group));
      for (int64_t step = 1; step < trace.steps; ++step) {
        for (int64_t j = 0; j < group; ++j) {
          const auto at = static_cast<size_t>(j);
          cosines[at] = trace.Cosine(from, map.QueryHead(head, j), step, step - 1);
          sums[at] += double{cosines[at]};
        }
        sum += double{ops::AggregateSimilarity(ops::Aggregation::kImportance, cosines, importance)};
      }
      const auto count = static_cast<double>(trace.steps - 1);
      p.similarity.push_back(static_cast<float>(sum / count));
      for (const double own : sums) p.similarity_q.push_back(static_cast<float>(own / count));
    }
  }
  return p;
}

HeadReplay::HeadReplay(const Trace& trace, Settings settings, int64_t first)
    : trace_(trace), settings_(std::move(settings)), label_{first, 0} {
  Refresh(label_);
}

int64_t HeadReplay::Refresh(TraceQuery q) {
  const std::vector<int32_t>& rows = trace_.Rows(settings_.place.layer, settings_.kv_head, q);
  const auto most = settings_.by_need ? trace_.budget * static_cast<double>(trace_.context)
                                      : settings_.slots_factor * static_cast<double>(rows.size());
  const size_t capacity = std::max(rows.size(), static_cast<size_t>(most));
  std::vector<int32_t> missing;
  std::vector<size_t> victims;
  std::vector<int32_t> held = slots_;
  std::ranges::sort(held);
  std::ranges::set_difference(rows, held, std::back_inserter(missing));
  for (size_t i = 0; i < slots_.size(); ++i) {
    const size_t slot = (next_victim_ + i) % slots_.size();
    if (!std::ranges::binary_search(rows, slots_[slot])) victims.push_back(slot);
  }
  size_t next = 0;
  for (const int32_t row : missing) {
    if (slots_.size() < capacity) {
      slots_.push_back(row);
    } else {
      slots_[victims[next]] = row;
      next_victim_ = victims[next++] + 1;
    }
  }
  return static_cast<int64_t>(rows.size() - missing.size());
}

ops::ForcedHead HeadReplay::LookUp(TraceQuery q, float tau) {
  const int64_t layer = settings_.place.layer;
  std::vector<float> cosines;
  for (const int64_t head : settings_.q_heads) {
    cosines.push_back(trace_.Cosine(layer, head, q, label_));
  }
  const float similarity =
      ops::AggregateSimilarity(settings_.aggregation, cosines, settings_.importance);
  ops::ForcedHead forced;
  forced.hit = similarity > tau ? 1 : 0;
  forced.kept = 0;
  if (forced.hit == 1) return forced;
  const auto in_units = [](double share) {
    return static_cast<int32_t>(share * ops::ForcedHead::kWhole);
  };
  const auto rows = static_cast<double>(trace_.Rows(layer, settings_.kv_head, q).size());
  const auto held = static_cast<double>(Refresh(q));
  label_ = q;
  forced.kept = rows > 0 ? in_units(held / rows) : ops::ForcedHead::kWhole;
  if (settings_.by_need) {
    forced.rows =
        in_units(std::min(rows / (trace_.budget * static_cast<double>(trace_.context)), 1.0));
  }
  return forced;
}

HeadReplay::Result HeadReplay::Step(int64_t step) {
  Result result;
  const int64_t distance = settings_.place.distance;
  const bool checks = distance > 0 && settings_.check;
  result.lookup = LookUp({step, distance}, settings_.tau);
  if (checks) {
    // Rows that this step's prediction has chosen.
    const bool chosen = result.lookup.hit == 0;
    const float tau =
        std::max(settings_.tau - settings_.check->margin, chosen ? settings_.check->least_tau : -1);
    result.check = LookUp({step, 0}, tau);
  }
  return result;
}

ForcedReuse ReplayReuse(const Trace& trace, const Layout& layout, const HeadPlan& heads,
                        const ops::SlotWindows<int64_t>& windows, ops::Aggregation aggregation,
                        std::optional<PredictionCheck> check) {
  if (windows.by_need && !trace.by_need) {
    throw InvalidArgument(
        "the trace was recorded with a budget of {}%; record one with --kv-budget auto, or replay "
        "a "
        "fixed budget",
        trace.budget * 100);
  }
  const TraceMap map(trace, layout);
  const int64_t group = layout.q_heads / layout.kv_heads;
  const int64_t steps = map.period();
  const int64_t a_step = layout.layers * layout.kv_heads;
  ForcedReuse reuse = EmptyReuse(heads, steps);
  for (ops::ForcedHead& head : reuse.heads) head.kept = 0;
  reuse.checks = reuse.heads;
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const HeadSettings& settings = heads.at(layer, head);
      if (settings.resident) continue;
      std::vector<int64_t> q_heads;
      for (int64_t j = 0; j < group; ++j) q_heads.push_back(map.QueryHead(head, j));
      const int64_t source = heads.sources.empty() ? -1 : heads.sources[static_cast<size_t>(layer)];
      HeadReplay replay(
          trace,
          {.place = map.Predicted(layer, source),
           .kv_head = map.Head(head),
           .q_heads = std::move(q_heads),
           .check = check,
           .aggregation = aggregation,
           .importance = heads.importance.data() + layer * layout.q_heads + head * group,
           .tau = settings.tau,
           .slots_factor = windows.slots_factor,
           .by_need = windows.by_need},
          map.Step(layer, head, 0));
      // The first round brings the head into the state in which each later one starts.
      for (int64_t t = 0; t < 2 * steps; ++t) {
        const HeadReplay::Result result = replay.Step(map.Step(layer, head, t));
        const auto at = static_cast<size_t>((t % steps) * a_step + layer * layout.kv_heads + head);
        reuse.heads[at] = result.lookup;
        if (result.check.hit >= 0) reuse.checks[at] = result.check;
      }
    }
  }
  return reuse;
}

}  // namespace litecache::lab
