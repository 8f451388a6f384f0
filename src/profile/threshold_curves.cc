#include "profile/threshold_curves.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/matrix_view.h"
#include "device/cpu/cpu_device.h"
#include "ops/linear/linear.h"
#include "ops/select/need.h"
#include "ops/slots/slot_windows.h"
#include "profile/similarity.h"
#include "profile/top_rows.h"

namespace litecache::profile {
namespace {

// Number of steps whose scores are in memory at a time: 32 steps of 4 heads at 16K tokens are 8
// MiB, half of it exact scores.
constexpr int64_t kBlockSteps = 32;

// Scores of a block of steps: exact scores converted to exponentials, and the rows selected by
// them.
class Block {
 public:
  Block(Stream& stream, const HeadRecording& head, const CurveOptions& options)
      : stream_(stream), head_(head), options_(options) {}

  // Row (t - first) * m + j: query head j of step t against all keys visible in the block's steps.
  void Score(const float* queries, int64_t first, int64_t count) {
    first_ = first;
    columns_ = head_.tokens - head_.steps + first + count;
    scores_.resize(static_cast<size_t>(count * head_.group * columns_));
    const int64_t width = head_.group * head_.head_dim;
    const MatrixView x = MatrixView::Of(const_cast<float*>(queries) + first * width,
                                        count * head_.group, head_.head_dim);
    const MatrixView keys =
        MatrixView::Of(const_cast<float*>(head_.keys), columns_, head_.head_dim);
    ops::Linear(stream_, x, keys, nullptr,
                MatrixView::Of(scores_.data(), count * head_.group, columns_));
  }

  float* Row(int64_t step, int64_t head) {
    return scores_.data() + ((step - first_) * head_.group + head) * columns_;
  }

  // Selects like the exact retriever: by the sum over the group of softmax over the candidates.
  // Leaves exp(scale * (q.k - largest candidate's)) in the candidates' places, and the sum of the
  // same over the sink and recent rows in fixed[j].
  void Select(int64_t step, std::vector<float>& totals, std::vector<float>& scratch,
              std::vector<int32_t>* positions, double* fixed) {
    const StepRange range = RangeOf(head_, options_, step);
    const int64_t candidates = range.end - range.begin;
    totals.assign(static_cast<size_t>(candidates), 0);
    for (int64_t j = 0; j < head_.group; ++j) {
      float* row = Row(step, j);
      float largest = candidates > 0 ? *std::max_element(row + range.begin, row + range.end) : 0;
      double sum = 0;
      for (int64_t i = range.begin; i < range.end; ++i) {
        row[i] = std::exp(head_.scale * (row[i] - largest));
        sum += double{row[i]};
      }
      fixed[j] = 0;
      const auto add = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          fixed[j] += std::exp(double{head_.scale} * (double{row[i]} - double{largest}));
        }
      };
      add(0, range.begin);
      add(range.end, range.visible);
      const auto inverse = static_cast<float>(1 / sum);
      for (int64_t i = 0; i < candidates; ++i)
        totals[static_cast<size_t>(i)] += row[range.begin + i] * inverse;
    }
    int64_t k = range.k;
    if (options_.budget.by_need && candidates > 0) {
      const float needed = ops::NeededScore(head_.group, candidates);
      const int64_t fewest = ops::SlotWindows<int64_t>{.by_need = true}.FewestRows(k);
      k = std::clamp<int64_t>(
          std::ranges::count_if(totals, [&](float score) { return score >= needed; }), fewest, k);
    }
    SelectLargest(totals.data(), candidates, k, range.begin, scratch, positions);
  }

 private:
  Stream& stream_;
  const HeadRecording& head_;
  const CurveOptions& options_;
  int64_t first_ = 0;
  int64_t columns_ = 0;
  std::vector<float> scores_;
};

double SumAt(const float* row, const std::vector<int32_t>& positions) {
  double sum = 0;
  for (const int32_t position : positions) sum += double{row[position]};
  return sum;
}

// (fixed + held) / (fixed + fresh); 1 if the sink and recent rows hold all countable mass.
double Ratio(double fixed, double held, double fresh) {
  if (!std::isfinite(fixed) || fixed + fresh <= 0) return 1;
  return (fixed + held) / (fixed + fresh);
}

}  // namespace

StepRange RangeOf(const HeadRecording& head, const CurveOptions& options, int64_t step) {
  StepRange range;
  range.visible = head.tokens - head.steps + step + 1;
  range.begin = std::min(options.sink_tokens, range.visible);
  range.end = std::max(range.begin, range.visible - options.recent_tokens);
  range.k = std::min(options.budget.RowsFor(range.visible), range.end - range.begin);
  return range;
}

std::vector<float> DefaultThresholds() {
  // Even steps of the angle, since a cosine changes little near 1.
  std::vector<float> thresholds = {-1,    -0.5f, -0.2f, 0,     0.1f,   0.2f,  0.3f,  0.4f,
                                   0.45f, 0.5f,  0.55f, 0.6f,  0.65f,  0.7f,  0.75f, 0.8f,
                                   0.84f, 0.88f, 0.91f, 0.94f, 0.965f, 0.98f, 0.99f, 1};
  return thresholds;
}

std::vector<std::vector<int32_t>> SimulateLookups(const HeadRecording& head,
                                                  const CurveOptions& options) {
  const size_t grid = options.thresholds.size();
  const auto steps = static_cast<size_t>(head.steps);
  std::vector<std::vector<int32_t>> held(grid, std::vector<int32_t>(steps, 0));
  const int64_t width = head.group * head.head_dim;
  // Most thresholds hold the rows of the same steps, so one similarity serves all of them.
  std::vector<float> similarity(steps);
  std::vector<int32_t> known(steps, -1);
  for (size_t t = 1; t < steps; ++t) {
    for (size_t g = 0; g < grid; ++g) {
      const auto label = static_cast<size_t>(held[g][t - 1]);
      if (known[label] != static_cast<int32_t>(t)) {
        known[label] = static_cast<int32_t>(t);
        similarity[label] =
            GroupSimilarity(options.aggregation, head.group, head.head_dim,
                            head.lookup + static_cast<int64_t>(t) * width,
                            head.lookup + static_cast<int64_t>(label) * width, head.importance);
      }
      const bool hit = similarity[label] > options.thresholds[g];
      held[g][t] = static_cast<int32_t>(hit ? label : t);
    }
  }
  return held;
}

void AddThresholdCurve(Stream& stream, const HeadRecording& head, const CurveOptions& options,
                       HeadCurve* curve, StepSets* sets) {
  const size_t grid = options.thresholds.size();
  const auto steps = static_cast<size_t>(head.steps);
  const auto m = static_cast<size_t>(head.group);
  const std::vector<std::vector<int32_t>> held = SimulateLookups(head, options);
  const bool predicted = head.lookup != head.actual;

  StepSets exact(steps);
  StepSets looked_up(predicted ? steps : 0);
  const StepSets& retrieved = predicted ? looked_up : exact;
  std::vector<double> fixed(steps * m), unused(m);
  std::vector<std::vector<double>> kept(grid, std::vector<double>(steps, 0));

  ThreadPool& pool = AsCpu(stream).pool();
  Block actual(stream, head, options), lookup(stream, head, options);
  for (int64_t first = 0; first < head.steps; first += kBlockSteps) {
    const int64_t count = std::min(kBlockSteps, head.steps - first);
    actual.Score(head.actual, first, count);
    if (predicted) lookup.Score(head.lookup, first, count);
    pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
      std::vector<float> totals, scratch;
      std::vector<double> ignored(m);
      for (int64_t t = first + begin; t < first + end; ++t) {
        const auto at = static_cast<size_t>(t);
        actual.Select(t, totals, scratch, &exact[at], &fixed[at * m]);
        if (predicted) lookup.Select(t, totals, scratch, &looked_up[at], ignored.data());
      }
    });
    // A second pass, because held rows may be those of an earlier step of the same block.
    pool.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
      std::vector<double> ratio(steps, -1);
      for (int64_t t = first + begin; t < first + end; ++t) {
        const auto at = static_cast<size_t>(t);
        std::vector<double> fresh(m);
        for (size_t j = 0; j < m; ++j) {
          fresh[j] = SumAt(actual.Row(t, static_cast<int64_t>(j)), exact[at]);
        }
        for (size_t g = 0; g < grid; ++g) {
          const auto source = static_cast<size_t>(held[g][at]);
          if (ratio[source] < 0) {
            double sum = 0;
            for (size_t j = 0; j < m; ++j) {
              const double mass = SumAt(actual.Row(t, static_cast<int64_t>(j)), retrieved[source]);
              sum += Ratio(fixed[at * m + j], mass, fresh[j]);
            }
            ratio[source] = sum / static_cast<double>(m);
          }
          kept[g][at] = ratio[source];
        }
        for (size_t g = 0; g < grid; ++g) ratio[static_cast<size_t>(held[g][at])] = -1;
      }
    });
  }

  curve->kept.resize(grid);
  curve->hits.resize(grid);
  for (size_t g = 0; g < grid; ++g) {
    for (size_t t = 1; t < steps; ++t) {
      curve->kept[g] += kept[g][t];
      curve->hits[g] += held[g][t] != static_cast<int32_t>(t);
    }
  }
  curve->lookups += head.steps - 1;
  if (sets != nullptr) *sets = std::move(exact);
}

}  // namespace litecache::profile
