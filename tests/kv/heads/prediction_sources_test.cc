// Which layer predicts which.
#include "kv/heads/prediction_sources.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expect_error.h"
#include "kv/cache.h"

namespace litecache::kv {
namespace {

std::vector<int64_t> Sources(const std::string& prefetch, DeviceType device) {
  KvOptions options;
  options.prefetch = prefetch;
  EXPECT_NO_THROW(options.Validate()) << prefetch;
  return PredictionSources(options, 7, device);
}

TEST(PredictionSources, ANumberIsADistanceFromLayerZeroOn) {
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    for (const char* text : {"off", "0"}) {
      EXPECT_EQ(Sources(text, device), std::vector<int64_t>(7, -1)) << text;
      EXPECT_EQ(LayersAhead(Sources(text, device)), 0) << text;
    }
    for (const char* text : {"on", "1"}) {
      EXPECT_EQ(Sources(text, device), (std::vector<int64_t>{-1, 0, 1, 2, 3, 4, 5})) << text;
    }
    EXPECT_EQ(Sources("3", device), (std::vector<int64_t>{-1, 0, 0, 0, 1, 2, 3}));
    for (const char* text : {"1", "2", "3", "4"}) {
      EXPECT_EQ(LayersAhead(Sources(text, device)), std::stoll(text));
    }
  }
  EXPECT_EQ(LayersAhead(Sources("4", DeviceType::kCuda)), Cache::kMostAhead);
}

TEST(PredictionSources, AutoBeginsWhereInputsPredictAnything) {
  EXPECT_EQ(Sources("auto", DeviceType::kCuda), (std::vector<int64_t>{-1, -1, -1, 2, 3, 4, 5}));
  EXPECT_EQ(Sources("auto", DeviceType::kCpu), std::vector<int64_t>(7, -1));
  KvOptions options;
  for (const int64_t layers : {1, 2, 3}) {
    EXPECT_EQ(LayersAhead(PredictionSources(options, layers, DeviceType::kCuda)), 0);
  }
}

TEST(PredictionSources, AListSaysItForEveryLayer) {
  const std::vector<int64_t> sources = {-1, 0, -1, 0, 2, 2, 4};
  EXPECT_EQ(SourcesText(sources), "-,0,-,0,2,2,4");
  EXPECT_EQ(Sources(SourcesText(sources), DeviceType::kCpu), sources);
  EXPECT_EQ(Sources(SourcesText(sources), DeviceType::kCuda), sources);
  KvOptions options;
  options.prefetch = SourcesText(sources);
  EXPECT_ERROR(PredictionSources(options, 8, DeviceType::kCuda), InvalidArgument, "7 layers",
               "the model has 8");
}

// Cosines of a real model, SmolLM2-135M's first layers (each predicted one and two layers earlier).
TEST(PredictionSources, MeasuredSourcesAreTheFarthestGoodOnes) {
  const std::vector<std::vector<float>> cosines = {{0, 0.24f, 0.68f, 0.96f, 0.97f, 0.97f, 0.97f},
                                                   {0, 0, -0.03f, 0.54f, 0.92f, 0.96f, 0.97f}};
  EXPECT_EQ(MeasuredSources(cosines), (std::vector<int64_t>{-1, -1, -1, 2, 3, 4, 4}));
  // One layer ahead only; nothing at all; a source is never before an earlier layer's.
  EXPECT_EQ(MeasuredSources({&cosines[0], 1}), (std::vector<int64_t>{-1, -1, -1, 2, 3, 4, 5}));
  EXPECT_EQ(MeasuredSources(std::vector(2, std::vector<float>(3))),
            (std::vector<int64_t>{-1, -1, -1}));
  EXPECT_EQ(
      MeasuredSources(std::vector<std::vector<float>>{{0, 0.95f, 0.95f, 0.95f}, {0, 0, 0, 0.97f}}),
      (std::vector<int64_t>{-1, 0, 1, 1}));
}

TEST(PredictionSources, SourcesComeInOrder) {
  for (const char* text : {"auto", "1", "2", "3", "4"}) {
    const std::vector<int64_t> sources = Sources(text, DeviceType::kCuda);
    for (size_t layer = 1; layer < sources.size(); ++layer) {
      EXPECT_GE(sources[layer], sources[layer - 1]) << text;
      EXPECT_LT(sources[layer], static_cast<int64_t>(layer)) << text;
    }
  }
}

}  // namespace
}  // namespace litecache::kv
