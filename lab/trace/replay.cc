#include "lab/trace/replay.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "lab/forced/reuse_override.h"
#include "lab/trace/replays_trace.h"

namespace litecache::kv {
namespace {

int64_t Common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      ++common, ++i, ++j;
    } else {
      ++(a[i] < b[j] ? i : j);
    }
  }
  return common;
}

}  // namespace

bool ReplayTrace(CachePlan* plan, std::shared_ptr<const Trace> trace) {
  if (auto* replays = dynamic_cast<ReplaysTrace*>(plan)) {
    replays->Replay(std::move(trace));
    return true;
  }
  auto* overridable = dynamic_cast<OverridablePlan*>(plan);
  if (overridable == nullptr) return false;
  overridable->SetOverride(std::make_shared<const ReuseOverride>(
      ReplayReuse(*trace, plan->layout(), *plan->heads(), overridable->aggregation())));
  return true;
}

TraceMap::TraceMap(const Trace& trace, const Layout& layout)
    : layers_(layout.layers),
      kv_heads_(layout.kv_heads),
      trace_layers_(trace.layers),
      trace_kv_heads_(trace.kv_heads),
      trace_group_(trace.group()),
      trace_steps_(trace.steps) {}

int64_t TraceMap::Layer(int64_t layer) const {
  if (layers_ == 1) return 0;
  // Rounded to nearest.
  return (2 * layer * (trace_layers_ - 1) + layers_ - 1) / (2 * (layers_ - 1));
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

ForcedReuse ReplayReuse(const Trace& trace, const Layout& layout, const HeadPlan& heads,
                        ops::Aggregation aggregation) {
  const TraceMap map(trace, layout);
  const int64_t group = layout.q_heads / layout.kv_heads;
  const int64_t steps = map.period();
  const int64_t a_step = layout.layers * layout.kv_heads;
  ForcedReuse reuse;
  reuse.steps = steps;
  reuse.heads.resize(static_cast<size_t>(steps * a_step));
  std::vector<float> cosines(static_cast<size_t>(group));
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const HeadSettings& settings = heads.at(layer, head);
      if (settings.resident) continue;
      const int64_t from = map.Layer(layer);
      const float* importance = heads.importance.data() + layer * layout.q_heads + head * group;
      int64_t label = map.Step(layer, head, 0);
      // The first round brings the head into the state in which each later one starts.
      for (int64_t t = 0; t < 2 * steps; ++t) {
        const int64_t now = map.Step(layer, head, t);
        for (int64_t j = 0; j < group; ++j) {
          cosines[static_cast<size_t>(j)] = trace.Cosine(from, map.QueryHead(head, j), now, label);
        }
        ops::ForcedHead forced;
        forced.hit =
            ops::AggregateSimilarity(aggregation, cosines, importance) > settings.tau ? 1 : 0;
        const auto& wanted = trace.Rows(from, map.Head(head), now);
        const auto& held = trace.Rows(from, map.Head(head), label);
        // Also set for a head without rows, which is filled, not refreshed.
        forced.kept = wanted.empty()
                          ? 0
                          : static_cast<int32_t>(Common(wanted, held) * ops::ForcedHead::kWhole /
                                                 static_cast<int64_t>(wanted.size()));
        if (forced.hit == 0) label = now;
        reuse.heads[static_cast<size_t>((t % steps) * a_step + layer * layout.kv_heads + head)] =
            forced;
      }
    }
  }
  return reuse;
}

}  // namespace litecache::kv
