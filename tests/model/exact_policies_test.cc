// Policies that attend every row wherever it is kept: their logits are those of policy full, on
// every family and on the shipped model.

#include <gtest/gtest.h>

#include <filesystem>

#include "kv/cache_plan.h"
#include "reference.h"
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
  return std::filesystem::exists(fixture) ? fixture
                                          : std::filesystem::path(LC_SOURCE_DIR) / "models" / name;
}

class ExactPoliciesTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kLong = 300, kShort = 77, kSteps = 4;

  // Logits of a step's rows: two prompts in chunks, then both decode beside a third prompt.
  std::vector<std::vector<float>> Run(std::unique_ptr<kv::Cache> cache) {
    Runner runner(device_, *decoder_, std::move(cache));
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
      logits.push_back(runner.Step({{first, draw(1), {0}, true},
                                    {second, draw(1), {0}, true},
                                    {third, draw(21), {20}, false}}));
    }
    stats_ = runner.cache().GetStats();
    return logits;
  }
  std::vector<std::vector<float>> Run(const KvOptions& options) {
    const auto plan =
        kv::MakeCachePlan(decoder_->config().kv_layout(decoder_->kv_dtype()), options, nullptr);
    return Run(plan->Create(device_, {.device = kPlenty, .host = kPlenty}));
  }

  CpuDevice device_{2};
  std::unique_ptr<Decoder> decoder_;
  kv::Stats stats_;  // of the last run
};

TEST_P(ExactPoliciesTest, LogitsAreThoseOfFull) {
  for (const bool f32 : {true, false}) {
    decoder_ = LoadDecoder(device_, Directory(GetParam()), {.compute_f32 = f32});
    const kv::Layout layout = decoder_->config().kv_layout(decoder_->kv_dtype());
    const auto full = Run(kv::CreateFullCache(device_, layout, kPlenty));
    KvOptions options;
    options.policy = "flexgen";
    for (const double share : {0.0, 0.5}) {
      options.flexgen.device_share = share;
      EXPECT_EQ(Run(options), full) << "flexgen " << share;
    }
    options.policy = "kvpr";
    const auto heads = static_cast<uint64_t>(layout.layers * layout.kv_heads);
    for (const int64_t split : {int64_t{0}, int64_t{1}, kLong / 2, kLong, int64_t{1} << 20}) {
      for (const bool chunked : {true, false}) {
        options.kvpr.split = split;
        options.kvpr.chunked = chunked;
        const auto logits = Run(options);
        uint64_t recomputed = 0;
        for (int64_t i = 0; i < kSteps; ++i) {
          recomputed +=
              static_cast<uint64_t>(std::min(split, kLong + i) + std::min(split, kShort + i));
        }
        EXPECT_EQ(stats_.rows_recomputed, recomputed * heads);
        if (split == 0) {
          EXPECT_EQ(logits, full);
          continue;
        }
        // A recomputed row is a product of many rows rather than of one, whose sums round
        // otherwise; bf16 rows make that a step of theirs here and there.
        for (size_t i = 0; i < full.size(); ++i) {
          EXPECT_LT(RelativeError(logits[i], full[i]), f32 ? 1e-4 : 2e-2)
              << "split " << split << " chunked " << chunked << " step " << i << " f32 " << f32;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExactPoliciesTest, ::testing::ValuesIn(Models()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace litecache::model
