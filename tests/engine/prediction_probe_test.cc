// Predictions are measured on real decode steps: cosines of the shipped model.
#include "engine/prediction_probe.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cpu/cpu_device.h"
#include "kv/heads/prediction_sources.h"
#include "source_directory.h"

namespace litecache::engine {
namespace {

TEST(PredictionProbe, MeasuresTheShippedModel) {
  CpuDevice device(2);
  const auto stream = device.CreateStream();
  const auto decoder =
      model::LoadDecoder(device, SourceDirectory() / "models/litecache-demo-16m", {});
  const auto cosines = MeasurePredictions(device, *stream, *decoder, 8);
  ASSERT_EQ(cosines.size(), 2u);
  for (const std::vector<float>& of_distance : cosines) ASSERT_EQ(of_distance.size(), 6u);
  const std::vector<float>&one = cosines[0], &two = cosines[1];
  EXPECT_EQ(one[0], 0);
  EXPECT_EQ(two[0], 0);
  EXPECT_EQ(two[1], 0);
  // The embeddings predict nothing; later layers' inputs predict well, the farther the worse.
  EXPECT_LT(one[1], 0.4);
  EXPECT_LT(two[2], 0.4);
  for (size_t layer = 3; layer < 6; ++layer) {
    EXPECT_GT(one[layer], 0.8) << layer;
    EXPECT_LT(one[layer], 0.999) << layer;
    EXPECT_LT(two[layer], one[layer]) << layer;
    EXPECT_GT(two[layer], 0.6) << layer;
  }
  // Layer 3 is not predicted well enough.
  EXPECT_EQ(kv::MeasuredSources(cosines)[1], -1);
  EXPECT_EQ(kv::MeasuredSources(cosines)[3], -1);
  // The same at every start.
  EXPECT_EQ(MeasurePredictions(device, *stream, *decoder, 8), cosines);
}

TEST(PredictionProbe, OnlyAutoOnAGpuIsMeasured) {
  CpuDevice device(1);
  const auto stream = device.CreateStream();
  const auto decoder =
      model::LoadDecoder(device, SourceDirectory() / "models/litecache-demo-16m", {});
  KvOptions options;
  for (const char* policy : {"full", "litecache"}) {
    options.policy = policy;
    EXPECT_EQ(WithMeasuredSources(options, device, *stream, *decoder).prefetch, "auto");
  }
}

}  // namespace
}  // namespace litecache::engine
