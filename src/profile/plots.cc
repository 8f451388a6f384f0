#include "profile/plots.h"

#include <algorithm>
#include <utility>

#include "profile/top_rows.h"

namespace litecache::profile {
namespace {

constexpr int64_t kHeatMapSteps = 192;
constexpr int64_t kHeatMaps = 6;

}  // namespace

std::vector<Plots::HeatMap> MakeHeatMaps(const Recording& recording, const kv::Layout& layout) {
  const int64_t steps = std::min(kHeatMapSteps, recording.steps);
  const int64_t count = std::min(layout.layers * layout.q_heads, kHeatMaps);
  std::vector<Plots::HeatMap> maps;
  for (int64_t i = 0; i < count; ++i) {
    Plots::HeatMap map;
    // Spread over the layers, and over the heads within them.
    map.layer = i * layout.layers / count;
    map.q_head = i * layout.q_heads / count;
    map.steps = steps;
    const auto query = [&](int64_t step) {
      return recording.Query(map.layer, recording.first_step() + step, map.q_head);
    };
    for (int64_t a = 0; a < steps; ++a) {
      for (int64_t b = 0; b < steps; ++b) {
        map.cosine.push_back(Cosine(query(a), query(b), layout.head_dim));
      }
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

void AddPairs(const HeadRecording& head, const StepSets& sets, ops::Aggregation aggregation,
              int64_t layer, int64_t count, std::mt19937_64& random,
              std::vector<Plots::Pair>* pairs) {
  const int64_t width = head.group * head.head_dim;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t lag = int64_t{1} << (random() % 7);
    if (lag >= head.steps) continue;
    const auto a = static_cast<int64_t>(random() % static_cast<uint64_t>(head.steps - lag));
    const auto& first = sets[static_cast<size_t>(a)];
    const auto& second = sets[static_cast<size_t>(a + lag)];
    if (second.empty()) continue;
    Plots::Pair pair;
    pair.similarity =
        GroupSimilarity(aggregation, head.group, head.head_dim, head.actual + (a + lag) * width,
                        head.actual + a * width, head.importance);
    pair.overlap =
        static_cast<float>(CountCommon(first, second)) / static_cast<float>(second.size());
    pair.layer = layer;
    pairs->push_back(pair);
  }
}

}  // namespace litecache::profile
