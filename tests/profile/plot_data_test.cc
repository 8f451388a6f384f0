#include "profile/plot_data.h"

#include <gtest/gtest.h>

namespace litecache::profile {
namespace {

TEST(PlotData, HasTheProfilesFigures) {
  ProfilerResult result;
  kv::Profile& p = result.profile;
  p.layers = 2;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_dim = 4;
  p.importance = {0, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 1};
  p.similarity.assign(4, 0.5f);
  p.tau_grid = {-1, 0.5f, 1};
  p.kept = p.kept_predicted = {0.5f, 0.995f, 1, 0.9f, 0.9f, 1, 0.1f, 0.2f, 1, 0.99f, 1, 1};
  p.hits = p.hits_predicted = {1, 0.6f, 0, 1, 0.5f, 0, 1, 0.4f, 0, 1, 0.3f, 0};
  result.plots.heat_maps.push_back({1, 2, 2, {1, 0.123456f, 0.123456f, 1}});
  result.plots.pairs = {{0.5f, 0.75f, 0}, {-0.5f, 0.25f, 1}};
  const auto json = PlotData(result, 0.99);
  // The lowest thresholds that keep 99% of the mass, and their hits.
  EXPECT_EQ(json["thresholds"], (std::vector<double>{0.5, 1, 1, -1}));
  EXPECT_EQ(json["hits"], (std::vector<double>{0.6, 0, 0, 1}));
  EXPECT_EQ(json["importance"], (std::vector<double>{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1}));
  EXPECT_EQ(json["curves"]["kept"][1], 0.995);
  EXPECT_EQ(json["similarity_maps"][0]["cosine"], (std::vector<double>{1, 0.1235, 0.1235, 1}));
  EXPECT_EQ(json["overlap"].dump(), "[[0,0.5,0.75],[1,-0.5,0.25]]");
  EXPECT_EQ(PlotData(result, 0.85)["thresholds"][1], -1);
}

}  // namespace
}  // namespace litecache::profile
