#include "lab/trace/trace_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "lab/policies/common/segmented_kmeans.h"
#include "ops/common/row_format.h"
#include "profile/recording.h"
#include "profile/similarity.h"
#include "profile/threshold_curves.h"

namespace litecache::lab {
using namespace profile;  // NOLINT: the recorder extends the profiler's recordings

namespace {

int8_t InUnits(float cosine) {
  return static_cast<int8_t>(std::lround(std::clamp(cosine, -1.0f, 1.0f) * Trace::kUnit));
}

void AppendCosines(const std::vector<float>& queries, int64_t group, int64_t d, int64_t steps,
                   Trace* trace) {
  for (int64_t j = 0; j < group; ++j) {
    const auto query = [&](int64_t step) { return queries.data() + (step * group + j) * d; };
    for (int64_t a = 1; a < steps; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        trace->cosines.push_back(InUnits(Cosine(query(a), query(b), d)));
      }
    }
  }
}

// The tables of a KV head's group, or of its rows, from `first` on.
struct TablePlace {
  int64_t distance = 0;
  int64_t first = 0;
};

void FillCosines(const std::vector<float>& actual, const std::vector<float>& predicted, int64_t d,
                 const TablePlace& at, Trace* trace) {
  const int64_t group = trace->group();
  const auto query = [&](TraceQuery q, int64_t j) {
    return (q.distance > 0 ? predicted : actual).data() + (q.step * group + j) * d;
  };
  TraceQuery a, b;
  for (int64_t j = 0; j < group; ++j) {
    int8_t* table = trace->predicted_cosines.data() + (at.first + j) * trace->table_size();
    for (int64_t i = 0; i < trace->table_size(); ++i) {
      if (!trace->TableEntry(i, at.distance, &a, &b)) continue;
      table[i] = InUnits(Cosine(query(a, j), query(b, j), d));
    }
  }
}

// The clusters sorted by the sum of the group's softmaxes over the centroids, the best first.
std::vector<uint16_t> Rank(const lab::KMeansResult& clusters, int64_t count, const float* queries,
                           int64_t group, int64_t d, float scale, int64_t ranked) {
  std::vector<double> weights(static_cast<size_t>(count)), logits(static_cast<size_t>(count));
  for (int64_t j = 0; j < group; ++j) {
    const float* q = queries + j * d;
    for (int64_t c = 0; c < count; ++c) {
      const float* centroid = clusters.centroids.data() + c * d;
      logits[static_cast<size_t>(c)] = double{scale} * std::inner_product(q, q + d, centroid, 0.0);
    }
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& logit : logits) sum += logit = std::exp(logit - most);
    for (size_t c = 0; c < weights.size(); ++c) weights[c] += logits[c] / sum;
  }
  for (size_t c = 0; c < weights.size(); ++c) {
    if (clusters.sizes[c] == 0) weights[c] = -1;
  }
  std::vector<uint16_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::partial_sort(order.begin(), order.begin() + ranked, order.end(),
                    [&](uint16_t a, uint16_t b) {
                      return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
                    });
  order.resize(static_cast<size_t>(ranked));
  return order;
}

// Clusters of a KV head's keys, ranked by each step's queries [steps][group][head_dim].
void AppendClusters(Stream& stream, const Recording& r, int64_t layer, int64_t head,
                    const std::vector<float>& queries, const TraceOptions& options, Trace* trace) {
  const int64_t group = trace->group(), d = r.layout.head_dim;
  const int64_t clustered = r.tokens - r.steps - options.sink_tokens - options.recent_tokens;
  // Keys as rows of one page; the values are not used.
  std::vector<float> rows(static_cast<size_t>(clustered * 2 * d));
  for (int64_t i = 0; i < clustered; ++i) {
    std::copy_n(r.Keys(layer, head) + (options.sink_tokens + i) * d, d, rows.data() + i * 2 * d);
  }
  std::byte* page = reinterpret_cast<std::byte*>(rows.data());
  lab::KMeansResult clusters;
  LC_CHECK(lab::SegmentedKMeans(stream,
                                {.rows = {&page, clustered, {ops::RowEncoding::kF32, d}},
                                 .count = clustered,
                                 .clusters = trace->clusters,
                                 .iterations = options.cluster_iterations},
                                &clusters));
  for (int64_t step = 0; step < r.steps; ++step) {
    const auto ranked = Rank(clusters, trace->clusters, queries.data() + step * group * d, group, d,
                             r.scale, trace->ranked);
    trace->cluster_ids.insert(trace->cluster_ids.end(), ranked.begin(), ranked.end());
  }
}

}  // namespace

Trace RecordTrace(Device& device, Stream& stream, model::Decoder& decoder,
                  std::span<const int32_t> tokens, const TraceOptions& options,
                  const std::function<void(int64_t done)>& progress) {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t first = n - options.steps;  // position of the first step
  const int64_t clustered = first - options.sink_tokens - options.recent_tokens;
  if (options.steps < 2 || clustered < options.cluster_tokens) {
    throw InvalidArgument(
        "a text of {} tokens is too short for a trace of {} steps: it needs {} more at least", n,
        options.steps, std::max<int64_t>(options.cluster_tokens - clustered, 2 - options.steps));
  }
  const Recording r =
      Record(device, stream, decoder, tokens,
             {.steps = options.steps, .chunk = options.chunk, .distances = kv::Cache::kMostAhead},
             progress);
  const kv::Layout& layout = r.layout;
  const int64_t group = layout.q_heads / layout.kv_heads, d = layout.head_dim;
  Trace trace;
  trace.layers = layout.layers;
  trace.q_heads = layout.q_heads;
  trace.kv_heads = layout.kv_heads;
  trace.context = n;
  trace.steps = options.steps;
  trace.distances = std::min(r.distances, layout.layers - 1);
  trace.lags = std::min(options.lags, options.steps - 1);
  const auto tables = static_cast<size_t>(trace.distances * layout.layers * trace.table_size());
  trace.predicted_cosines.resize(tables * static_cast<size_t>(layout.q_heads));
  trace.rows.resize(
      static_cast<size_t>((1 + trace.distances) * layout.layers * layout.kv_heads * trace.steps));
  trace.budget = options.budget;
  trace.by_need = options.by_need;
  trace.retriever = "exact";
  trace.text_hash = fmt::format(
      "{:016x}", Fnv1a({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()}));
  trace.importance = options.importance;
  if (trace.importance.empty()) {
    trace.importance.assign(static_cast<size_t>(layout.layers * layout.q_heads), 1.0f);
  }
  LC_CHECK(trace.importance.size() == static_cast<size_t>(layout.layers * layout.q_heads));
  constexpr int64_t kMost = int64_t{1} << 16;  // ids have 16 bits
  trace.clusters = std::min(clustered / options.cluster_tokens, kMost);
  trace.ranked = std::clamp<int64_t>(
      std::llround(options.ranked * static_cast<double>(trace.clusters)), 1, trace.clusters);

  CurveOptions curves;
  curves.budget.share = options.budget;
  curves.budget.by_need = options.by_need;
  curves.sink_tokens = options.sink_tokens;
  curves.recent_tokens = options.recent_tokens;
  curves.thresholds = {1.0f};  // only the sets are needed
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const std::vector<float> queries = r.StepQueries(layer, head, 0);
      AppendCosines(queries, group, d, r.steps, &trace);
      HeadRecording work;
      work.group = group;
      work.head_dim = d;
      work.tokens = r.tokens;
      work.steps = r.steps;
      work.scale = r.scale;
      work.keys = r.Keys(layer, head);
      work.importance = trace.importance.data() + layer * layout.q_heads + head * group;
      const auto rows_of = [&](const std::vector<float>& selecting) {
        work.actual = work.lookup = selecting.data();
        HeadCurve curve;
        StepSets sets;
        AddThresholdCurve(stream, work, curves, &curve, &sets);
        return sets;
      };
      const auto put_rows = [&](int64_t distance, StepSets sets) {
        const int64_t first =
            ((distance * layout.layers + layer) * layout.kv_heads + head) * trace.steps;
        std::ranges::move(sets, trace.rows.begin() + first);
      };
      put_rows(0, rows_of(queries));
      for (int64_t distance = 1; distance <= std::min(trace.distances, layer); ++distance) {
        const std::vector<float> predicted = r.StepQueries(layer, head, distance);
        const int64_t table = (distance - 1) * layout.layers + layer;
        FillCosines(queries, predicted, d, {distance, table * layout.q_heads + head * group},
                    &trace);
        put_rows(distance, rows_of(predicted));
      }
      AppendClusters(stream, r, layer, head, queries, options, &trace);
    }
  }
  return trace;
}

}  // namespace litecache::lab
