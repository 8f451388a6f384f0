#include "profile/plot_data.h"

#include <cmath>
#include <vector>

namespace litecache::profile {
namespace {

using Json = nlohmann::ordered_json;

// A float printed exactly as a double has seventeen digits, which made the file 4 MB.
double Short(double value) { return std::round(value * 1e4) / 1e4; }

template <typename T>
Json Short(const std::vector<T>& values) {
  Json rounded = Json::array();
  for (const T value : values) rounded.push_back(Short(double{value}));
  return rounded;
}

}  // namespace

Json PlotData(const ProfilerResult& result, double keep) {
  const kv::Profile& p = result.profile;
  Json thresholds = Json::array(), hits = Json::array();
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const kv::Profile::Fit fit = p.FitThreshold(layer, head, keep, /*predicted=*/false);
      thresholds.push_back(Short(double{fit.tau}));
      hits.push_back(Short(fit.hits));
    }
  }
  Json maps = Json::array(), overlap = Json::array();
  for (const auto& map : result.plots.heat_maps) {
    maps.push_back({{"layer", map.layer},
                    {"q_head", map.q_head},
                    {"steps", map.steps},
                    {"cosine", Short(map.cosine)}});
  }
  for (const auto& pair : result.plots.pairs) {
    overlap.push_back({pair.layer, Short(double{pair.similarity}), Short(double{pair.overlap})});
  }
  return {{"layers", p.layers},
          {"q_heads", p.q_heads},
          {"kv_heads", p.kv_heads},
          {"keep", keep},
          {"importance", Short(p.importance)},
          {"similarity", Short(p.similarity)},
          {"thresholds", std::move(thresholds)},
          {"hits", std::move(hits)},
          {"curves",
           {{"threshold", Short(p.tau_grid)},
            {"kept", Short(p.kept)},
            {"hits", Short(p.hits)},
            {"kept_predicted", Short(p.kept_predicted)},
            {"hits_predicted", Short(p.hits_predicted)}}},
          {"similarity_maps", std::move(maps)},
          {"overlap", std::move(overlap)}};
}

}  // namespace litecache::profile
