#include "ops/reuse/qsac_lookup.h"

#include <algorithm>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "ops/reuse/qsac_lookup_cpu.h"

namespace litecache::ops {
namespace {

float Smallest(std::span<const float> similarities) {
  return *std::min_element(similarities.begin(), similarities.end());
}

// The harmonic mean with weight(j) for similarity j, at least one of them positive. Sums are
// double, since a similarity just above 0 has a huge reciprocal.
template <class Weight>
float HarmonicMean(std::span<const float> similarities, const Weight& weight) {
  double weights = 0, reciprocals = 0;
  float smallest = 1;
  bool positive = true;
  for (size_t j = 0; j < similarities.size(); ++j) {
    const double s = weight(j);
    if (!(s > 0)) continue;
    smallest = std::min(smallest, similarities[j]);
    positive &= similarities[j] > 0;
    weights += s;
    reciprocals += s / static_cast<double>(similarities[j]);
  }
  return positive ? static_cast<float>(weights / reciprocals) : smallest;
}

}  // namespace

float AggregateSimilarity(Aggregation aggregation, std::span<const float> similarities,
                          const float* importance) {
  LC_CHECK(!similarities.empty());
  switch (aggregation) {
    case Aggregation::kMin:
      return Smallest(similarities);
    case Aggregation::kMean: {
      double sum = 0;
      for (const float s : similarities) sum += s;
      return static_cast<float>(sum / static_cast<double>(similarities.size()));
    }
    case Aggregation::kImportance:
      if (std::any_of(importance, importance + similarities.size(),
                      [](float s) { return s > 0; })) {
        return HarmonicMean(similarities, [&](size_t j) { return importance[j]; });
      }
      break;
    case Aggregation::kHarmonic:
      break;
  }
  return HarmonicMean(similarities, [](size_t) { return 1.0; });
}

void QsacLookup(Stream& stream, int64_t group, int64_t head_dim, Aggregation aggregation,
                std::span<LookupWork> work) {
  LC_CHECK(group >= 1 && head_dim >= 1, "group {}, head_dim {}", group, head_dim);
  for (const LookupWork& w : work) {
    LC_CHECK(w.q != nullptr && w.label != nullptr);
    LC_CHECK(w.importance != nullptr || aggregation != Aggregation::kImportance);
  }
  cpu::QsacLookup(AsCpu(stream).pool(), group, head_dim, aggregation, work);
}

}  // namespace litecache::ops
