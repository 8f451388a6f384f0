#include "ops/experts/experts_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "ops/common/row_grain.h"
#include "ops/linear/linear.h"

namespace litecache::ops::cpu {
namespace {

// Of the rows that one expert gets, at most all: x, gate and up, and what leaves down.
struct Parts {
  MatrixView x, gate, up, output;
};

Parts PlaceParts(void* scratch, int64_t rows, int64_t hidden, int64_t intermediate) {
  auto* next = static_cast<float*>(scratch);
  const auto take = [&](int64_t cols) {
    const MatrixView view = MatrixView::Of(next, rows, cols);
    next += rows * cols;
    return view;
  };
  Parts parts;
  parts.x = take(hidden);
  parts.gate = take(intermediate);
  parts.up = take(intermediate);
  parts.output = take(hidden);
  return parts;
}

MatrixView MatrixOf(const ExpertMatrices& matrices, int64_t expert) {
  MatrixView view = matrices.type;
  view.data = const_cast<void*>(matrices.data[expert]);  // nothing writes through a weight's view
  return view;
}

LinearPart PartOf(const ExpertMatrices& matrices, int64_t expert, const MatrixView& y) {
  const float* const bias = matrices.bias;
  return {.weight = MatrixOf(matrices, expert),
          .bias = bias == nullptr ? nullptr : bias + expert * matrices.type.rows,
          .y = y};
}

struct Sent {
  int64_t row;
  float weight;
};

// Calls f(i, row, weight) for the rows that an expert gets, on all threads.
template <typename F>
void ForEachRow(ThreadPool& pool, const std::vector<Sent>& rows, int64_t cols, const F& f) {
  pool.ParallelFor(static_cast<int64_t>(rows.size()), RowGrain(cols),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       const Sent& sent = rows[static_cast<size_t>(i)];
                       f(i, sent.row, sent.weight);
                     }
                   });
}

// A row's scores, of which softmax's have yet to be divided by their sum.
void Score(const float* logits, const Router& router, std::span<float> scores) {
  const float most = *std::max_element(logits, logits + scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = router.sigmoid ? 1 / (1 + std::exp(-logits[i])) : std::exp(logits[i] - most);
  }
}

// By what a row's experts are chosen: logits are in the same order as their scores, and differ
// where scores round to 0.
void Rank(const float* logits, const Router& router, std::span<const float> scores,
          std::span<float> ranks) {
  if (router.correction == nullptr) {
    std::copy_n(logits, scores.size(), ranks.begin());
    return;
  }
  const float sum = router.sigmoid ? 1 : std::accumulate(scores.begin(), scores.end(), 0.0f);
  for (size_t i = 0; i < scores.size(); ++i) ranks[i] = scores[i] / sum + router.correction[i];
}

}  // namespace

void Route(const MatrixView& logits, const Router& router, const Routing& routing,
           const MatrixView& share, const ExpertRange& own) {
  const int64_t routed = routing.active - (share.rows > 0 ? 1 : 0);
  const auto count = static_cast<size_t>(logits.cols);
  std::array<int32_t, kMostExperts> order;
  std::array<float, kMostExperts> scores, ranks;
  const auto experts = std::span(order).first(count);
  for (int64_t row = 0; row < routing.rows; ++row) {
    const float* const logit = logits.Row<float>(row);
    Score(logit, router, std::span(scores).first(count));
    Rank(logit, router, std::span(scores).first(count), std::span(ranks).first(count));
    const auto rank = [&](int32_t expert) { return ranks[static_cast<size_t>(expert)]; };
    const auto score = [&](int32_t expert) { return scores[static_cast<size_t>(expert)]; };
    std::iota(experts.begin(), experts.end(), 0);
    std::partial_sort(
        experts.begin(), experts.begin() + routed, experts.end(),
        [&](int32_t a, int32_t b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; });
    int32_t* const chosen = routing.experts + row * routing.active;
    float* const weights = routing.weights + row * routing.active;
    float sum = 0;
    for (const int32_t expert :
         router.normalized ? experts.first(static_cast<size_t>(routed)) : experts) {
      sum += score(expert);
    }
    if (router.sigmoid && !router.normalized) sum = 1;
    int64_t here = 0;
    for (int64_t i = 0; i < routed; ++i) {
      const int32_t expert = experts[static_cast<size_t>(i)];
      if (expert < own.first || expert >= own.first + own.count) continue;
      chosen[here] = static_cast<int32_t>(expert - own.first);
      weights[here] = router.scale * score(expert) / sum;
      if (router.scales != nullptr) weights[here] *= router.scales[expert];
      ++here;
    }
    for (; here < routed; ++here) {
      chosen[here] = Routing::kElsewhere;
      weights[here] = 0;
    }
    if (routed == routing.active) continue;
    chosen[routed] = static_cast<int32_t>(logits.cols);
    weights[routed] = 1 / (1 + std::exp(-*share.Row<float>(row)));
  }
}

uint64_t ExpertScratchBytes(const ExpertLayer& layer, int64_t rows, int64_t) {
  const int64_t intermediate = layer.gate.type.rows, hidden = layer.gate.type.cols;
  return static_cast<uint64_t>(rows * 2 * (hidden + intermediate)) * sizeof(float);
}

void Experts(Stream& stream, const MatrixView& x, const Routing& routing, const ExpertLayer& layer,
             const GateFunction& function, void* scratch, const MatrixView& y) {
  std::vector<std::vector<Sent>> sent(static_cast<size_t>(layer.gate.count));
  for (int64_t row = 0; row < routing.rows; ++row) {
    for (int64_t i = row * routing.active; i < (row + 1) * routing.active; ++i) {
      const int32_t expert = routing.experts[i];
      if (expert == Routing::kElsewhere) break;
      LC_CHECK(expert >= 0 && expert < layer.gate.count, "expert {}", expert);
      sent[static_cast<size_t>(expert)].push_back({row, routing.weights[i]});
    }
  }
  ThreadPool& pool = AsCpu(stream).pool();
  const Parts parts = PlaceParts(scratch, x.rows, x.cols, layer.gate.type.rows);
  const auto bytes = static_cast<size_t>(x.cols) * sizeof(float);
  for (int64_t expert = 0; expert < layer.gate.count; ++expert) {
    const std::vector<Sent>& rows = sent[static_cast<size_t>(expert)];
    const auto count = static_cast<int64_t>(rows.size());
    if (count == 0) continue;
    MatrixView own = x;
    if (count < x.rows) {
      own = parts.x.Rows(0, count);
      ForEachRow(pool, rows, x.cols, [&](int64_t i, int64_t row, float) {
        std::memcpy(own.Row<float>(i), x.Row<float>(row), bytes);
      });
    }
    const MatrixView gate = parts.gate.Rows(0, count), output = parts.output.Rows(0, count);
    GatedLinear(stream, own, PartOf(layer.gate, expert, gate),
                PartOf(layer.up, expert, parts.up.Rows(0, count)), function);
    const LinearPart down = PartOf(layer.down, expert, output);
    Linear(stream, gate, down.weight, down.bias, down.y);
    ForEachRow(pool, rows, x.cols, [&](int64_t i, int64_t row, float weight) {
      const float* const from = output.Row<float>(i);
      float* const to = y.Row<float>(row);
      for (int64_t column = 0; column < x.cols; ++column) to[column] += weight * from[column];
    });
  }
}

}  // namespace litecache::ops::cpu
