// Policies that attend every row, wherever it is kept, give the logits of policy full, for every
// family and the shipped model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "device_fixture.h"
#include "expect_error.h"
#include "kv/cache_plan.h"
#include "kv/offload/shape.h"
#include "model/weight_placement.h"
#include "reference.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::model {
namespace {

constexpr uint64_t kPlenty = uint64_t{256} << 20;

std::vector<std::string> Models() {
  std::vector<std::string> names = FixtureNames();
  names.push_back("litecache-demo-16m");
  return names;
}

std::filesystem::path Directory(const std::string& name) {
  const std::filesystem::path fixture = FixturesDirectory() / name;
  return std::filesystem::exists(fixture) ? fixture : SourceDirectory() / "models" / name;
}

class ExactPoliciesTest : public OnDevice {
 protected:
  static constexpr int64_t kLong = 300, kShort = 77, kSteps = 6;

  // The logits of a step's rows: two prompts in chunks, then both decode, at times beside a third
  // prompt.
  std::vector<std::vector<float>> Run(std::unique_ptr<kv::Cache> cache) {
    Runner runner(device(), *decoder_, std::move(cache));
    std::mt19937_64 random = testing::TestRandom();
    const auto draw = [&](int64_t count) {
      std::vector<int32_t> tokens;
      while (static_cast<int64_t>(tokens.size()) < count) {
        tokens.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(decoder_->config().vocab)));
      }
      return tokens;
    };
    const kv::SequenceId first = runner.Create(), second = runner.Create(), third = runner.Create();
    std::vector<std::vector<float>> logits;
    logits.push_back(runner.Prefill(first, draw(kLong), 128, std::vector<int32_t>{kLong - 1}));
    logits.push_back(runner.Prefill(second, draw(kShort), 50, std::vector<int32_t>{kShort - 1}));
    for (int64_t i = 0; i < kSteps; ++i) {
      // Several consecutive steps are alike, for policies that then work ahead.
      std::vector<Runner::Part> parts = {{first, draw(1), {0}, true}, {second, draw(1), {0}, true}};
      if (i % 4 == 0) parts.push_back({third, draw(21), {20}, false});
      logits.push_back(runner.Step(parts));
    }
    stats_ = runner.cache().GetStats();
    return logits;
  }
  std::vector<std::vector<float>> Run(const KvOptions& options) {
    const auto plan = kv::MakeCachePlan(decoder_->config().kv_layout(decoder_->kv_dtype()), options,
                                        nullptr, device().type());
    return Run(plan->Create(device(), {.device = kPlenty, .host = kPlenty}));
  }

  // On a GPU, heads on the device and on the host are attended separately and split differently.
  void ExpectEqual(const std::vector<std::vector<float>>& logits,
                   const std::vector<std::vector<float>>& full, bool exactly, double bound) {
    if (exactly && !on_gpu()) {
      EXPECT_EQ(logits, full);
      return;
    }
    ASSERT_EQ(logits.size(), full.size());
    for (size_t i = 0; i < full.size(); ++i) {
      EXPECT_LT(RelativeError(logits[i], full[i]), bound) << "step " << i;
    }
  }

  std::unique_ptr<Decoder> decoder_;
  kv::Stats stats_;  // of the last run
};

TEST_P(ExactPoliciesTest, LogitsAreThoseOfFull) {
  for (const bool f32 : {true, false}) {
    decoder_ = LoadDecoder(device(), Directory(name()), {.compute_f32 = f32});
    const kv::Layout layout = decoder_->config().kv_layout(decoder_->kv_dtype());
    // A recomputed row is a product of many rows rather than of one, whose sums round differently;
    // with bf16 rows that is sometimes one bf16 step.
    const double bound = f32 ? 1e-4 : 2e-2;
    const auto full = Run(kv::CreateFullCache(device(), layout, kPlenty));
    KvOptions options;
    options.policy = "flexgen";
    for (const double share : {0.0, 0.5}) {
      options.flexgen.device_share = share;
      SCOPED_TRACE(::testing::Message() << "flexgen " << share << " f32 " << f32);
      ExpectEqual(Run(options), full, /*exactly=*/true, bound);
    }
    options.flexgen.device_share = 0;
    options.batch_groups = 2;
    ExpectEqual(Run(options), full, /*exactly=*/true, bound);
    options.policy = "kvpr";
    const auto heads = static_cast<uint64_t>(layout.layers * layout.kv_heads);
    for (const int64_t split : {int64_t{0}, int64_t{1}, kLong / 2, kLong, int64_t{1} << 20}) {
      for (const bool chunked : {true, false}) {
        options.kvpr.split = split;
        options.kvpr.chunked = chunked;
        options.batch_groups = split == 1 ? 1 : 2;
        SCOPED_TRACE(::testing::Message()
                     << "split " << split << " chunked " << chunked << " f32 " << f32);
        ExpectEqual(Run(options), full, /*exactly=*/split == 0, bound);
        uint64_t recomputed = 0;
        for (int64_t i = 0; i < kSteps; ++i) {
          recomputed +=
              static_cast<uint64_t>(std::min(split, kLong + i) + std::min(split, kShort + i));
        }
        EXPECT_EQ(stats_.rows_recomputed, recomputed * heads);
      }
    }
  }
}

// Where a step has fewer layers than a GPU's cache has buffers, a transfer ahead waits for rows
// that the step before has only just stored. Only a decoder shows this, because it waits for no
// layer itself.
TEST(ExactPoliciesModels, OneHasFewerLayersThanThereAreBuffers) {
  int64_t least = kv::offload::Shape::kGpuBuffers;
  for (const std::string& name : Models()) {
    least = std::min(least, ModelConfig::FromFile(Directory(name) / "config.json").layers);
  }
  EXPECT_LT(least, kv::offload::Shape::kGpuBuffers);
}

// Offloaded weights are the same weights: every policy's logits are what they are when all weights
// stay, in prefill and decode, however many layers take turns in one place.
class OffloadedWeightsTest : public ExactPoliciesTest {
 protected:
  // load: makes the decoder with a share of its layers on the device.
  void Compare(const std::function<std::unique_ptr<Decoder>(double on_device)>& load,
               double bound) {
    std::vector<std::pair<std::string, KvOptions>> policies(1, {"full", {}});
    for (const int64_t split : {int64_t{-2}, int64_t{0}, kLong / 2, int64_t{1} << 20}) {
      KvOptions options;
      options.policy = split == -2 ? "flexgen" : "kvpr";
      options.kvpr.split = std::max<int64_t>(split, 0);
      policies.emplace_back(options.policy + " " + std::to_string(split), options);
      options.batch_groups = 3;  // of three sequences
      policies.emplace_back(policies.back().first + " in groups", options);
      options.kvpr.chunked = false;
      if (split > 0) policies.emplace_back(policies.back().first + " eq. 11", options);
    }
    KvOptions options;
    options.policy = "litecache";
    // Policies that ask for a layer's queries while layers before it compute.
    for (const char* prefetch : {"on", "2"}) {
      options.prefetch = prefetch;
      policies.emplace_back(options.policy + " " + prefetch, options);
    }

    std::vector<std::vector<std::vector<float>>> expected;
    decoder_ = load(1);
    const uint64_t all = decoder_->weight_bytes();
    for (const auto& [name, policy] : policies) expected.push_back(Run(policy));
    const int64_t layers = decoder_->config().layers;
    for (const double on_device : {0.0, 0.4, 1.0 - 1.0 / static_cast<double>(layers)}) {
      decoder_.reset();
      decoder_ = load(on_device);
      EXPECT_EQ(decoder_->offloaded_layers(),
                layers - std::llround(on_device * static_cast<double>(layers)));
      EXPECT_GT(decoder_->host_weight_bytes(), 0u);
      EXPECT_GE(decoder_->weight_bytes() + decoder_->host_weight_bytes(), all);
      for (size_t i = 0; i < policies.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << policies[i].first << " on device " << on_device);
        const uint64_t before = decoder_->moved_weight_bytes();
        const auto logits = Run(policies[i].second);
        EXPECT_EQ(logits.front(), expected[i].front()) << "prefill of the first prompt";
        ExpectEqual(logits, expected[i], /*exactly=*/true, bound);
        // Layers that share a place are copied again in every step: 11 steps.
        if (decoder_->offloaded_layers() >= 2 * kProjectionPlaces) {
          EXPECT_GE(decoder_->moved_weight_bytes() - before, 10 * decoder_->host_weight_bytes());
        }
      }
    }
  }
};

TEST_P(OffloadedWeightsTest, LogitsOfModels) {
  const auto load = [&](bool f32, double on_device) {
    return LoadDecoder(device(), Directory(name()),
                       {.compute_f32 = f32, .weights_on_device = on_device});
  };
  if (!on_gpu()) {
    EXPECT_ERROR(load(false, 0.5), InvalidArgument, "weights_on_device = 0.5");
    return;
  }
  for (const bool f32 : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "f32 " << f32);
    Compare([&](double on_device) { return load(f32, on_device); }, f32 ? 1e-5 : 5e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadedWeightsTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

// More layers than the fixtures have.
class OffloadedShapesTest : public OffloadedWeightsTest {};

TEST_P(OffloadedShapesTest, LogitsOfManyLayers) {
  const ModelConfig config = ModelConfig::FromShapeName(name());
  const uint64_t seed = testing::TestSeed();
  Compare(
      [&](double on_device) {
        return RandomDecoder(device(), config, seed, {.weights_on_device = on_device});
      },
      5e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OffloadedShapesTest,
                         ::testing::Combine(::testing::Values("opt-125m", "qwen2.5-0.5b"),
                                            ::testing::Values("cuda")),
                         [](const auto& info) {
                           return std::get<0>(info.param).starts_with("opt") ? "opt" : "qwen2";
                         });

INSTANTIATE_TEST_SUITE_P(Models, ExactPoliciesTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

}  // namespace
}  // namespace litecache::model
