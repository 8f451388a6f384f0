#include "lab/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace litecache::lab {

int64_t CommonRows(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
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

int Trace::ActualCosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const {
  if (a == b) return kUnit;
  if (a < b) std::swap(a, b);
  const size_t head = static_cast<size_t>(layer * q_heads + q_head) * pairs();
  return cosines[head + static_cast<size_t>(a * (a - 1) / 2 + b)];
}

bool Trace::TableEntry(int64_t i, int64_t distance, TraceQuery* a, TraceQuery* b) const {
  const int64_t with_actual = steps * (2 * lags + 1);
  if (i < with_actual) {
    *a = {i / (2 * lags + 1), distance};
    *b = {a->step - lags + i % (2 * lags + 1), 0};
  } else {
    i -= with_actual;
    *a = {i / lags, distance};
    *b = {a->step - 1 - i % lags, distance};
  }
  return b->step >= 0 && b->step < steps;
}

template <class Actual>
int Trace::Entry(const int8_t* table, TraceQuery a, TraceQuery b, const Actual& actual) const {
  const bool both = a.distance > 0 && b.distance > 0;
  LC_CHECK(!both || a.distance == b.distance);
  // a: predicted, and the later one of two.
  if (a.distance == 0 || (both && a.step < b.step)) std::swap(a, b);
  const auto entry = [&](int64_t lag) -> int {  // with step a.step + lag
    if (!both) return table[a.step * (2 * lags + 1) + lags + lag];
    if (lag == 0) return kUnit;
    return table[steps * (2 * lags + 1) + a.step * lags - 1 - lag];
  };
  const int64_t lag = b.step - a.step;
  if (std::abs(lag) <= lags) return entry(lag);
  const int64_t furthest = lag < 0 ? -lags : lags;
  const int off = entry(furthest) - actual(a.step, a.step + furthest);
  return actual(a.step, b.step) + off;
}

float Trace::Cosine(int64_t layer, int64_t q_head, int64_t a, int64_t b) const {
  return static_cast<float>(ActualCosine(layer, q_head, a, b)) / kUnit;
}

float Trace::Cosine(int64_t layer, int64_t q_head, TraceQuery a, TraceQuery b) const {
  const int64_t distance = std::max(a.distance, b.distance);
  if (distance == 0) return Cosine(layer, q_head, a.step, b.step);
  LC_CHECK(distance <= distances && distance <= layer);
  const int64_t head = ((distance - 1) * layers + layer) * q_heads + q_head;
  const int value = Entry(predicted_cosines.data() + head * table_size(), a, b,
                          [&](int64_t x, int64_t y) { return ActualCosine(layer, q_head, x, y); });
  return static_cast<float>(std::clamp(value, -kUnit, kUnit)) / kUnit;
}

std::string Trace::Describe() const {
  return fmt::format("{}, {} steps at {} tokens, text {}", model, steps, context, text_hash);
}

}  // namespace litecache::lab
