#include "model/weight_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "expect_error.h"
#include "io/checkpoint.h"
#include "model/expert_store.h"
#include "model/families.h"
#include "model/reference.h"
#include "model/weight_stream.h"
#include "model/weights.h"
#include "ops/linear/quantized/packed_blocks.h"

namespace litecache::model {
namespace {

TEST(WeightPlacementTest, LayersAreSpreadEvenly) {
  for (int64_t layers = 1; layers <= 81; ++layers) {
    for (int64_t stay = 0; stay <= layers; ++stay) {
      const auto placement =
          WeightPlacement::Of(layers, static_cast<double>(stay) / static_cast<double>(layers));
      ASSERT_EQ(placement.offloaded, layers - stay);
      int64_t count = 0, run = 0, longest = 0;
      for (int64_t layer = 0; layer < layers; ++layer) {
        run = placement.Offloads(layer) ? run + 1 : 0;
        count += placement.Offloads(layer);
        longest = std::max(longest, run);
      }
      EXPECT_EQ(count, layers - stay);
      // No run of offloaded layers is longer than the gap between two resident layers.
      EXPECT_LE(longest, stay == 0 ? layers : (layers - stay + stay - 1) / stay);
    }
  }
}

TEST(WeightPlacementTest, ProjectionsHavePlacesForTheLayersAhead) {
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int64_t stay = 0; stay <= layers; ++stay) {
      const auto placement =
          WeightPlacement::Of(layers, static_cast<double>(stay) / static_cast<double>(layers));
      const int64_t ahead = placement.LayersAhead();
      // Number of offloaded layers, starting at one that attends.
      int64_t most = 0, most_beyond = 0;
      for (int64_t first = 0; first < layers; ++first) {
        int64_t count = 0;
        for (int64_t i = first; i < layers && i <= first + ahead + 1; ++i) {
          count += placement.Offloads(i);
          (i <= first + ahead ? most : most_beyond) =
              std::max(i <= first + ahead ? most : most_beyond, count);
        }
      }
      EXPECT_LE(most, kProjectionPlaces) << stay << " of " << layers;
      if (ahead < layers) {
        EXPECT_GT(most_beyond, kProjectionPlaces) << stay << " of " << layers;
      }
      EXPECT_NO_THROW(CheckLayersAhead(placement, ahead));
    }
  }
  EXPECT_EQ(WeightPlacement::Of(32, 0).LayersAhead(), kProjectionPlaces - 1);
  EXPECT_EQ(WeightPlacement::Of(32, 0.75).LayersAhead(), 4 * kProjectionPlaces - 1);
  EXPECT_ERROR(CheckLayersAhead(WeightPlacement::Of(32, 0.5), 8), Unsupported, "prefetch = 8",
               "16 of 32", "prefetch = 7", "weights_on_device");
}

// Bytes by which norms and biases, which are f32, exceed two bytes a number.
uint64_t Widened(const ModelConfig& config) {
  // A layer of OPT has two norms with biases, and biases of six matrices, one of them of the
  // feed-forward block's width.
  const auto layer = static_cast<uint64_t>(9 * config.hidden + config.intermediate);
  return 2 *
         (static_cast<uint64_t>(config.layers) * layer + 2 * static_cast<uint64_t>(config.hidden));
}

TEST(WeightPlacementTest, EstimatesWhatEachMemoryHolds) {
  const ModelConfig config = ModelConfig::FromShapeName("opt-6.7b");
  const WeightTypes bf16(config, std::nullopt, {}, nullptr);
  const auto all = static_cast<uint64_t>(config.parameters()) * 2 + Widened(config);
  const WeightBytes resident = EstimateWeights(config, bf16, {}, /*gpu=*/true);
  EXPECT_EQ(resident.device, all);
  EXPECT_EQ(resident.host, 0u);
  // A layer has 4 h x h and 2 h x 4h; there are places for four layers' projections (3 h x h) and
  // two layers' rest (9 h x h).
  const uint64_t square = uint64_t{4096} * 4096 * 2;
  const WeightBytes half = EstimateWeights(config, bf16, {.layers = 0.5}, true);
  EXPECT_EQ(half.host, 16 * 12 * square);
  EXPECT_EQ(half.device, all - half.host + (4 * 3 + 2 * 9) * square);
  const WeightBytes none =
      EstimateWeights(config, {config, DType::kF32, {}, nullptr}, {.layers = 0}, true);
  EXPECT_EQ(none.host, 2 * 32 * 12 * square);
  EXPECT_EQ(EstimateWeights(config, bf16, {.layers = 31.0 / 32}, true).device, all)
      << "a place of its own";
}

TEST(WeightPlacementTest, ExpertsInHostMemoryHaveSlots) {
  const ModelConfig config = ModelConfig::FromShapeName("qwen3-30b-a3b");
  const WeightTypes bf16(config, std::nullopt, {}, nullptr);
  const WeightBytes whole = EstimateWeights(config, bf16, {}, /*gpu=*/true);
  const WeightBytes half = EstimateWeights(config, bf16, {.experts = 0.5}, /*gpu=*/true);
  const uint64_t expert = uint64_t{3} * 768 * 2048 * 2, layers = 48;
  EXPECT_EQ(half.host, layers * 128 * expert);
  EXPECT_EQ(half.device + half.host,
            whole.device + layers * (ExpertSlotBytes(128, 64, expert) - 128 * 3 * sizeof(void*)));
  EXPECT_GE(ExpertSlotBytes(128, 64, expert), 64 * expert);
  EXPECT_LT(ExpertSlotBytes(128, 64, expert), 64 * expert + (64 << 10));
  // On a CPU they are where they are.
  EXPECT_EQ(EstimateWeights(config, bf16, {.experts = 0.5}, false).host, 0u);
}

TEST(WeightPlacementTest, PlacesHoldTheLargestOfTheLayers) {
  const ModelConfig config = ModelConfig::FromShapeName("llama3-8b");
  const WeightTypes q4(config, std::nullopt, Quantization::Parse("q4_k,down_proj=q6_k"), nullptr);
  const auto blocks = [](const char* format, int64_t rows, int64_t cols) {
    return ops::PackedBytes(*FindBlockFormat(format), rows, cols);
  };
  const uint64_t projections = blocks("Q4_K", 4096, 4096) + 2 * blocks("Q4_K", 1024, 4096);
  const uint64_t rest =
      blocks("Q4_K", 4096, 4096) + 2 * blocks("Q4_K", 14336, 4096) + blocks("Q6_K", 4096, 14336);
  const WeightBytes half = EstimateWeights(config, q4, {.layers = 0.5}, true);
  EXPECT_EQ(half.host, 16 * (projections + rest));
  const uint64_t tables = 2 * blocks("Q6_K", 128256, 4096);
  const uint64_t norms = 65 * 4096 * sizeof(float);
  EXPECT_EQ(half.device, 16 * (projections + rest) + 4 * projections + 2 * rest + tables + norms);
}

// Notes what layers put in their places, all of which are host memory.
class NotingStream final : public WeightStream {
 public:
  NotingStream(const WeightPlacement& placement, PlaceBytes* places)
      : placement_(placement), places_(*places) {}
  bool Offloads(int64_t layer) const override { return placement_.Offloads(layer); }
  Matrix Add(const LayerPlace& place, const MatrixView& type, size_t bytes) override {
    if (place.layer != layer_) {
      layer_ = place.layer;
      ++ordinal_;
      counts_ = {};
    }
    std::vector<uint64_t>& most = places_.Of(place.part, ordinal_);
    const size_t index = counts_[static_cast<size_t>(place.part)]++;
    most.resize(std::max(most.size(), index + 1));
    most[index] = std::max<uint64_t>(most[index], bytes);
    host_bytes_ += bytes;
    memory_.emplace_back(bytes);
    MatrixView view = type;
    view.data = memory_.back().data();
    return {memory_.back().data(), view};
  }
  void Settle(Stream&) override {}
  void Await(Stream&, int64_t, LayerPart) override {}
  void Release(Stream&, int64_t, LayerPart) override {}
  uint64_t host_bytes() const override { return host_bytes_; }
  uint64_t device_bytes() const override {
    uint64_t bytes = 0;
    for (const auto& part : places_.matrices) {
      for (const auto& place : part) bytes = std::accumulate(place.begin(), place.end(), bytes);
    }
    return bytes;
  }
  uint64_t moved_bytes() const override { return 0; }

 private:
  const WeightPlacement placement_;
  PlaceBytes& places_;
  int64_t layer_ = -1, ordinal_ = -1;
  std::array<size_t, kLayerParts> counts_ = {};
  uint64_t host_bytes_ = 0;
  std::vector<std::vector<std::byte>> memory_;
};

// Of every family, among them those whose first layers are dense and share places with layers that
// have experts.
TEST(WeightPlacementTest, PlacesHoldWhatLayersPutThere) {
  CpuDevice device(2);
  for (const std::string& name : FixtureNames()) {
    const std::filesystem::path directory = FixturesDirectory() / name;
    const ModelConfig config = ModelConfig::FromModel(directory);
    if (!config.recurrent.empty()) continue;
    const auto checkpoint =
        std::make_shared<const io::Checkpoint>(directory, config.experts.stacked);
    for (const char* quantization : {"", "q8_0,down_proj=q4_0"}) {
      const WeightTypes types(config, std::nullopt, Quantization::Parse(quantization), checkpoint);
      for (const double share : {0.0, 0.4}) {
        SCOPED_TRACE(::testing::Message()
                     << name << " " << quantization << ", on device " << share);
        const auto placement = WeightPlacement::Of(config, share);
        PlaceBytes put;
        auto store = OpenCheckpointWeights(device, checkpoint, types, /*passing=*/true, {});
        store = UploadWeights(device, device.pool(), std::move(store),
                              std::make_unique<NotingStream>(placement, &put), nullptr, 0, {});
        const auto decoder = SpecOf(config.family).build(device, config, std::move(store));
        PlaceBytes estimated = EstimatePlaces(config, types, {.layers = share});
        for (int part = 0; part < kLayerParts; ++part) {
          for (int place = 0; place < kMostPlaces; ++place) {
            EXPECT_EQ(estimated.matrices[part][place], put.matrices[part][place])
                << "part " << part << ", place " << place;
          }
        }
        const WeightBytes bytes = EstimateWeights(config, types, {.layers = share}, /*gpu=*/true);
        EXPECT_EQ(bytes.host, decoder->host_weight_bytes());
        EXPECT_EQ(bytes.device, decoder->weight_bytes());
      }
    }
  }
}

}  // namespace
}  // namespace litecache::model
