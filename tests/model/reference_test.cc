// Compares every fixture with Transformers: logits at 16 positions of a 640-token prompt, and the
// greedy continuation.
#include "reference.h"

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <optional>

#include "device_fixture.h"
#include "expect_error.h"
#include "model/families.h"
#include "model/weight_types.h"

namespace litecache::model {
namespace {

// Bounds on the relative error of logits, against float32 in Transformers on the same weights.
constexpr double kF32Bound = 1e-4;
constexpr double kBf16Bound = 2e-2;

class ReferenceTest : public OnDevice {
 protected:
  ModelConfig Config() const { return ModelConfig::FromModel(FixturesDirectory() / name()); }
  std::unique_ptr<Decoder> Load(std::optional<DType> dtype) {
    return LoadDecoder(device(), FixturesDirectory() / name(), {.dtype = dtype});
  }

  void Compare(Decoder& decoder, double bound) {
    const Reference reference(name());
    ASSERT_GT(reference.prompt.size(), 512u);
    Runner runner(device(), decoder);
    const kv::SequenceId sequence = runner.Create();
    const auto logits =
        runner.Prefill(sequence, reference.prompt, static_cast<int64_t>(reference.prompt.size()),
                       reference.positions);
    const double error = RelativeError(logits, reference.logits);
    std::cout << "relative error of logits " << error << " (bound " << bound << ")\n";
    EXPECT_LT(error, bound);
    // Every position must match, not only the average.
    const auto vocab = static_cast<size_t>(decoder.config().vocab);
    for (size_t i = 0; i < reference.positions.size(); ++i) {
      EXPECT_LT(RelativeError(std::span(logits).subspan(i * vocab, vocab),
                              std::span(reference.logits).subspan(i * vocab, vocab)),
                2 * bound)
          << "position " << reference.positions[i];
    }

    // Greedy steps, fed with the reference's tokens. A token is compared only if its lead exceeds
    // errors of this size: 4 deviations in both of two logits.
    std::vector<float> last = runner.Step({{sequence, {reference.greedy[0]}, {0}, true}});
    int compared = 0;
    for (size_t i = 1; i < reference.greedy.size(); ++i) {
      if (reference.margins[i] > 8 * bound * reference.scales[i]) {
        ++compared;
        EXPECT_EQ(std::ranges::max_element(last) - last.begin(), reference.greedy[i])
            << "greedy step " << i;
      }
      last = runner.Step({{sequence, {reference.greedy[i]}, {0}, true}});
    }
    EXPECT_GE(compared, 12);
  }
};

TEST_P(ReferenceTest, F32Arithmetic) {
  const auto decoder = Load(DType::kF32);
  EXPECT_EQ(decoder->kv_dtype(), DType::kF32);
  Compare(*decoder, kF32Bound);
}

TEST_P(ReferenceTest, OwnArithmetic) {
  const auto decoder = Load(std::nullopt);
  const bool bf16_weights = decoder->config().weight_dtype == DType::kBF16;
  EXPECT_EQ(decoder->kv_dtype(), bf16_weights ? DType::kBF16 : DType::kF32);
  Compare(*decoder, bf16_weights ? kBf16Bound : kF32Bound);
}

// Of all checkpoints, those in f16 and f32 as well.
TEST_P(ReferenceTest, Bf16Arithmetic) {
  const auto decoder = Load(DType::kBF16);
  EXPECT_EQ(decoder->kv_dtype(), DType::kBF16);
  EXPECT_EQ(decoder->config().weight_dtype, DType::kBF16);
  Compare(*decoder, kBf16Bound);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ReferenceTest,
                         ::testing::Combine(::testing::ValuesIn(FixtureNames()),
                                            ::testing::Values("cpu", "cuda")),
                         TestName);

TEST(FixturesTest, CoverEveryFamilyAndDtype) {
  std::vector<Family> families;
  std::vector<DType> dtypes;
  for (const std::string& name : FixtureNames()) {
    const auto config = ModelConfig::FromModel(FixturesDirectory() / name);
    families.push_back(config.family);
    dtypes.push_back(config.weight_dtype);
  }
  EXPECT_GE(families.size(), 12u);
  for (const FamilySpec& spec : Families()) {
    EXPECT_TRUE(std::ranges::count(families, spec.family) > 0) << spec.architecture;
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    EXPECT_TRUE(std::ranges::count(dtypes, dtype) > 0) << litecache::Name(dtype);
  }
}

TEST(FixturesTest, RoutersAreNeverQuantized) {
  int routers = 0;
  for (const std::string& name : FixtureNames()) {
    SCOPED_TRACE(name);
    const auto config = ModelConfig::FromModel(FixturesDirectory() / name);
    const ExpertConfig& experts = config.experts;
    if (experts.count == 0) continue;
    ++routers;
    const WeightTypes types(config, std::nullopt, Quantization::Parse("q8_0"), nullptr);
    const std::string layer = "model.layers.0.";
    const std::string module = experts.module.empty() ? layer : layer + experts.module + ".";
    const auto type = [&](const std::string& of, int64_t rows) {
      return types.Of(of + ".weight", rows, config.hidden).dtype;
    };
    EXPECT_EQ(type(module + experts.router, experts.count), DType::kBF16);
    EXPECT_EQ(type(layer + "self_attn.k_proj", config.kv_width()), DType::kBlocks);
  }
  EXPECT_GE(routers, 9);
}

TEST(FixturesTest, GpusRefuseWideHeadsOnly) {
  ModelConfig config;
  for (const std::string& name : FixtureNames()) {
    config = ModelConfig::FromModel(FixturesDirectory() / name);
    EXPECT_NO_THROW(CheckRunsOnGpu(config)) << name;
  }
  config = {};
  config.architecture = "WideForCausalLM";
  config.head_dim = 512;
  EXPECT_NO_THROW(CheckRunsOnGpu(config));
  for (int64_t ModelConfig::*dim : {&ModelConfig::head_dim, &ModelConfig::window_head_dim}) {
    ModelConfig wide = config;
    wide.*dim = 514;
    EXPECT_ERROR(CheckRunsOnGpu(wide), Unsupported, "WideForCausalLM", "514", "512",
                 "--device cpu");
  }
}

}  // namespace
}  // namespace litecache::model
