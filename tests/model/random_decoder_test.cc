#include <gtest/gtest.h>

#include "device_fixture.h"
#include "expect_error.h"
#include "reference.h"

namespace litecache::model {
namespace {

ModelConfig Small(const char* shape) {
  ModelConfig config = ModelConfig::FromShapeName(shape);
  config.layers = 2;
  if (!config.windowed.empty()) config.windowed.resize(2);
  if (!config.recurrent.empty()) {
    config.recurrent = {true, false};
    config.delta = {.key_heads = 2, .value_heads = 4, .key_dim = 24, .value_dim = 20, .taps = 4};
  }
  config.vocab = 500;
  config.hidden = 128;
  config.embedding_dim = 128;
  config.intermediate = 96;
  if (config.experts.count > 0) {
    config.experts.count = 6;
    config.experts.active = 2;
    config.experts.intermediate = 64;
  }
  config.q_heads = 4;
  config.kv_heads = config.family == Family::kOpt ? 4 : 2;
  config.head_dim = 32;
  if (config.rotary_dim > config.head_dim) config.rotary_dim = 8;
  config.max_context = 64;
  return config;
}

std::vector<float> Logits(Decoder& decoder, CpuDevice& device) {
  Runner runner(device, decoder);
  return runner.Prefill(runner.Create(), std::vector<int32_t>{1, 2, 3, 400, 499}, 5,
                        std::vector<int32_t>{4});
}

TEST(RandomDecoderTest, EveryFamilyRunsAndSeedsDecide) {
  CpuDevice device(2);
  for (const char* shape :
       {"llama3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-8b", "opt-125m", "qwen3-30b-a3b",
        "mixtral-8x7b", "olmoe-7b", "gpt-oss-20b", "qwen3.5-9b", "gemma2-2b"}) {
    const ModelConfig config = Small(shape);
    const auto first = RandomDecoder(device, config, 1, {});
    const auto again = RandomDecoder(device, config, 1, {});
    const auto other = RandomDecoder(device, config, 2, {});
    const auto logits = Logits(*first, device);
    for (const float value : logits) ASSERT_TRUE(std::isfinite(value)) << shape;
    EXPECT_EQ(logits, Logits(*again, device)) << shape;
    EXPECT_GT(RelativeError(Logits(*other, device), logits), 0.5) << shape;
    EXPECT_EQ(first->kv_dtype(), DType::kBF16);
    EXPECT_EQ(RandomDecoder(device, config, 1, {.dtype = DType::kF32})->kv_dtype(), DType::kF32);
  }
}

constexpr auto kNameWithoutDots = [](const auto& info) {
  std::string name = TestName(info);
  std::ranges::replace(name, '.', '_');
  return name;
};

class RandomWeightsTest : public OnDevice {};

// Decoders of the same seed have the same weights on every device.
TEST_P(RandomWeightsTest, AreTheCpus) {
  const ModelConfig config = Small(name().c_str());
  CpuDevice cpu(2);
  const auto there = RandomDecoder(cpu, config, 3, {.dtype = DType::kF32});
  const auto here = RandomDecoder(device(), config, 3, {.dtype = DType::kF32});
  const auto logits = [](Device& device, Decoder& decoder) {
    Runner runner(device, decoder);
    return runner.Prefill(runner.Create(), std::vector<int32_t>{1, 2, 3, 400, 499}, 5,
                          std::vector<int32_t>{1, 4});
  };
  EXPECT_LT(RelativeError(logits(device(), *here), logits(cpu, *there)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RandomWeightsTest,
                         ::testing::Combine(::testing::Values("llama3.2-1b", "qwen2.5-0.5b",
                                                              "qwen3-8b", "opt-125m",
                                                              "qwen3-30b-a3b"),
                                            ::testing::Values("cpu", "cuda")),
                         kNameWithoutDots);

class QuantizedWeightsTest : public OnDevice {};

// Products of quantized blocks, of few rows and of many, against f32 products of the blocks'
// values.
TEST_P(QuantizedWeightsTest, GiveTheLogitsOfTheirValues) {
  ModelConfig config = Small(name().c_str());
  config.hidden = config.embedding_dim = 256;
  config.head_dim = 64;
  config.intermediate = 512;
  // Where rounding exchanges a row's experts, the error is that of another expert.
  const double bound = config.experts.count > 0 ? 0.1 : 0.03;
  CpuDevice cpu(2);
  for (const char* types :
       {"q8_0", "q4_k,v_proj=q6_k,down_proj=q6_k", "q4_0,k_proj=none", "q5_k"}) {
    SCOPED_TRACE(types);
    const auto quantization = Quantization::Parse(types);
    const auto there =
        RandomDecoder(cpu, config, 3, {.dtype = DType::kF32, .quantization = quantization});
    const auto here = RandomDecoder(device(), config, 3, {.quantization = quantization});
    EXPECT_EQ(here->kv_dtype(), DType::kBF16);
    std::vector<int32_t> prompt(50);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 7 % 499);
    for (const int64_t chunk : {int64_t{1}, int64_t{5}, int64_t{50}}) {
      const auto logits = [&](Device& device, Decoder& decoder) {
        Runner runner(device, decoder);
        return runner.Prefill(runner.Create(), prompt, chunk, std::vector<int32_t>{0, 24, 49});
      };
      const double error = RelativeError(logits(device(), *here), logits(cpu, *there));
      EXPECT_LT(error, bound) << chunk;
      EXPECT_GT(error, 0) << "computed in f32";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, QuantizedWeightsTest,
                         ::testing::Combine(::testing::Values("llama3.2-1b", "qwen2.5-0.5b",
                                                              "qwen3-8b", "opt-125m",
                                                              "qwen3-30b-a3b"),
                                            ::testing::Values("cpu", "cuda")),
                         kNameWithoutDots);

TEST(RandomDecoderTest, WeightBytes) {
  CpuDevice device(2);
  const ModelConfig config = Small("llama3-8b");  // not tied
  const auto decoder = RandomDecoder(device, config, 1, {});
  const int64_t norms = (2 * config.layers + 1) * config.hidden;
  EXPECT_EQ(static_cast<int64_t>(decoder->weight_bytes()),
            2 * (config.parameters() - norms) + 4 * norms);
  // A step reads one row of the embedding table, and all other weights.
  EXPECT_EQ(static_cast<int64_t>(decoder->weight_bytes() - decoder->weight_bytes_per_step(1)),
            2 * (config.vocab - 1) * config.hidden);
  const auto tied = RandomDecoder(device, Small("llama3.2-1b"), 1, {});
  EXPECT_EQ(tied->weight_bytes(), tied->weight_bytes_per_step(1));
}

// Of experts, a step reads those that its rows are sent to.
TEST(RandomDecoderTest, WeightBytesOfExperts) {
  CpuDevice device(2);
  const ModelConfig config = Small("qwen3-30b-a3b");
  const auto decoder = RandomDecoder(device, config, 1, {});
  const int64_t norms =
      (2 * config.layers + 1) * config.hidden + config.layers * 2 * config.head_dim;
  EXPECT_EQ(static_cast<int64_t>(decoder->weight_bytes()),
            2 * (config.parameters() - norms) + 4 * norms);
  const auto read = [&](int64_t rows) {
    return static_cast<int64_t>(decoder->weight_bytes_per_step(rows));
  };
  const int64_t table = 2 * (config.vocab - 1) * config.hidden;
  EXPECT_EQ(read(1), 2 * (config.active_parameters() - norms) + 4 * norms - table);
  // Two rows have four experts, of which some are the same: 6 (1 - (2 / 3)^2) on average.
  const int64_t expert = config.layers * 2 * 3 * config.hidden * config.experts.intermediate;
  EXPECT_NEAR(static_cast<double>(read(2) - read(1)), static_cast<double>(expert) * 4 / 3, 1);
  EXPECT_EQ(read(1000), static_cast<int64_t>(decoder->weight_bytes()) - table);
}

// With one layer whose blocks add almost nothing, the logits of a constant input show the mean and
// the standard deviation of the head's rows, normal(0, 0.02).
TEST(RandomDecoderTest, LogitsHaveTheSpreadOfNormalWeights) {
  CpuDevice device(2);
  ModelConfig config = Small("llama3-8b");
  config.vocab = 20'000;
  const auto decoder = RandomDecoder(device, config, 7, {.dtype = DType::kF32});
  Runner runner(device, *decoder);
  const auto logits =
      runner.Prefill(runner.Create(), std::vector<int32_t>{5}, 1, std::vector<int32_t>{0});
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (const float value : logits) {
    sum += value;
    squares += value * value;
    fourth += std::pow(value, 4);
  }
  const auto n = static_cast<double>(logits.size());
  // The normed input has length sqrt(hidden): logits are normal(0, 0.02 sqrt(hidden)).
  const double deviation = 0.02 * std::sqrt(static_cast<double>(config.hidden));
  EXPECT_NEAR(sum / n / deviation, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n / (deviation * deviation), 1, 0.06);
  EXPECT_NEAR(fourth / n / std::pow(deviation, 4), 3, 0.6);  // kurtosis of a normal distribution
}

TEST(RandomDecoderTest, ProgressReachesTheEnd) {
  CpuDevice device(2);
  int64_t last = 0;
  LoadOptions options;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
    if (done > 0.9 * static_cast<double>(total)) throw InvalidArgument("near the end");
  };
  EXPECT_ERROR(RandomDecoder(device, Small("llama3-8b"), 1, options), InvalidArgument, "near");
}

TEST(RandomDecoderTest, RefusesWhatDoesNotFit) {
  CpuDevice device(2);
  ModelConfig config = ModelConfig::FromShapeName("qwen2.5-14b");
  config.layers = 1024;
  EXPECT_ERROR(RandomDecoder(device, config, 1, {}), CapacityError, "GiB", "available");
}

}  // namespace
}  // namespace litecache::model
