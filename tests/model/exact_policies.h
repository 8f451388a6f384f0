// Compares a model's logits under policies that attend every row, wherever it is stored.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kv/cache_plan.h"
#include "model/device_fixture.h"
#include "model/reference.h"
#include "model/weight_placement.h"
#include "source_directory.h"
#include "test_seed.h"

namespace litecache::model {

inline constexpr uint64_t kPlenty = uint64_t{256} << 20;

// The fixtures of all families, and the shipped model.
inline std::vector<std::string> Models() {
  std::vector<std::string> names = FixtureNames();
  names.push_back("litecache-demo-16m");
  return names;
}

inline std::filesystem::path Directory(const std::string& name) {
  const std::filesystem::path fixture = FixturesDirectory() / name;
  return std::filesystem::exists(fixture) ? fixture : SourceDirectory() / "models" / name;
}

class ExactPoliciesTest : public OnDevice {
 public:
  static constexpr int64_t kLong = 300, kShort = 77, kSteps = 6;  // tokens of prompts; decode steps

 protected:
  // The logits of a step's rows: two prompts in chunks, then both decode, sometimes together with a
  // third prompt.
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
      // Several consecutive steps are similar, for policies that then work ahead.
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
  // Where experts are chosen from scores of bf16, rounding exchanges two of them now and then: one
  // step may then differ by more than the bound.
  void ExpectEqual(const std::vector<std::vector<float>>& logits,
                   const std::vector<std::vector<float>>& full, bool exactly, double bound) {
    if (exactly && !on_gpu()) {
      EXPECT_EQ(logits, full);
      return;
    }
    ASSERT_EQ(logits.size(), full.size());
    const bool experts = decoder_->config().experts.count > 0;
    bool may_exchange = experts && decoder_->kv_dtype() != DType::kF32;
    for (size_t i = 0; i < full.size(); ++i) {
      const double error = RelativeError(logits[i], full[i]);
      if (error >= bound && may_exchange) {
        may_exchange = false;
        EXPECT_LT(error, 0.3) << "step " << i << ", more than an exchanged expert";
        continue;
      }
      EXPECT_LT(error, bound) << "step " << i;
    }
  }

  std::unique_ptr<Decoder> decoder_;
  kv::Stats stats_;  // of the last run
};

// Offloading does not change weights: a policy's logits are the same as with all weights on the
// device, in prefill and decode, however many layers share one place.
class OffloadedWeightsTest : public ExactPoliciesTest {
 protected:
  using Policies = std::vector<std::pair<std::string, KvOptions>>;

  // load: makes the decoder with a share of its layers on the device.
  void Compare(Policies policies,
               const std::function<std::unique_ptr<Decoder>(double on_device)>& load,
               double bound) {
    std::vector<std::vector<std::vector<float>>> expected;
    decoder_ = load(1);
    // Queries of models with windows or states are not predicted.
    if (!decoder_->config().uniform()) {
      std::erase_if(policies,
                    [](const auto& item) { return item.second.prefetch != KvOptions().prefetch; });
    }
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

}  // namespace litecache::model
