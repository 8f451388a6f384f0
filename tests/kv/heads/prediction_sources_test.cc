// Which layer predicts which.
#include "kv/heads/prediction_sources.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  EXPECT_EQ(Sources("auto", DeviceType::kCuda), (std::vector<int64_t>{-1, -1, -1, 2, 2, 3, 4}));
  EXPECT_EQ(Sources("auto", DeviceType::kCpu), std::vector<int64_t>(7, -1));
  KvOptions options;
  for (const int64_t layers : {1, 2, 3}) {
    EXPECT_EQ(LayersAhead(PredictionSources(options, layers, DeviceType::kCuda)), 0);
  }
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
