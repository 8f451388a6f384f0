// Logits do not depend on where experts are.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/device_fixture.h"
#include "model/exact_policies.h"
#include "model/expert_store.h"

namespace litecache::model {
namespace {

class OffloadedExpertsTest : public OnDevice {
 protected:
  // The logits of a prompt in chunks, and of steps with one and with several sequences.
  std::vector<float> Logits(Decoder& decoder) {
    Runner runner(device(), decoder);
    std::vector<kv::SequenceId> sequences;
    std::vector<float> all;
    const auto keep = [&](const std::vector<float>& logits) {
      all.insert(all.end(), logits.begin(), logits.end());
    };
    for (const int64_t length : {200, 33, 9}) {
      std::vector<int32_t> prompt;
      for (int64_t i = 0; i < length; ++i) {
        prompt.push_back(static_cast<int32_t>((i * 37 + length) % decoder.config().vocab));
      }
      sequences.push_back(runner.Create());
      keep(runner.Prefill(sequences.back(), prompt, 120,
                          std::vector<int32_t>{static_cast<int32_t>(length - 1)}));
    }
    for (int32_t step = 0; step < 12; ++step) {
      std::vector<Runner::Part> parts;
      for (size_t i = 0; i <= static_cast<size_t>(step) % sequences.size(); ++i) {
        parts.push_back({sequences[i], {(step * 11 + 3) % 100}, {0}, true});
      }
      keep(runner.Step(parts));
    }
    return all;
  }

  void Check(const std::function<std::unique_ptr<Decoder>(double on_device)>& make,
             double tolerance) {
    const auto whole = make(1);
    EXPECT_EQ(whole->host_weight_bytes(), 0u);
    const std::vector<float> expected = Logits(*whole);
    for (const double share : {0.0, 0.4, 0.8}) {
      SCOPED_TRACE(share);
      const auto decoder = make(share);
      EXPECT_GT(decoder->host_weight_bytes(), 0u);
      EXPECT_LT(decoder->weight_bytes(), whole->weight_bytes() + (share < 0.5 ? 0 : 1 << 20));
      EXPECT_LE(RelativeError(Logits(*decoder), expected), tolerance);
      const ExpertCounts counts = decoder->expert_counts();
      EXPECT_GT(counts.lookups, 0u);
      EXPECT_EQ(counts.hits == 0, share == 0);
      EXPECT_LT(counts.hits, counts.lookups);
      EXPECT_EQ(decoder->moved_weight_bytes(), counts.bytes);
      EXPECT_GT(counts.bytes, 0u);
    }
  }
};

TEST_P(OffloadedExpertsTest, LogitsOfModels) {
  if (!on_gpu()) {
    EXPECT_ERROR(LoadDecoder(device(), Directory(name()), {.experts_on_device = 0.5}),
                 InvalidArgument, "experts_on_device = 0.5", "on the CPU");
    EXPECT_ERROR(LoadDecoder(device(), Directory("qwen3"), {.experts_on_device = 0.5}),
                 InvalidArgument, "experts_on_device = 0.5", "no experts");
    return;
  }
  for (const auto dtype : {std::optional<DType>(), std::optional(DType::kF32)}) {
    Check(
        [&](double share) {
          return LoadDecoder(device(), Directory(name()),
                             {.dtype = dtype, .experts_on_device = share});
        },
        1e-6);
  }
}

TEST_P(OffloadedExpertsTest, LogitsOfQuantizedModels) {
  if (!on_gpu()) GTEST_SKIP() << "on the CPU all weights are in the host's memory";
  ModelConfig config = ModelConfig::FromModel(Directory(name()));
  config.hidden = config.embedding_dim = 256;
  config.experts.intermediate = config.intermediate = 512;
  if (config.experts.shared > 0) config.experts.shared = 256;
  for (const char* types : {"q4_k", "q8_0,down_proj=q6_k,w2=q6_k"}) {
    SCOPED_TRACE(types);
    const Quantization quantization = Quantization::Parse(types);
    Check(
        [&](double share) {
          auto decoder = RandomDecoder(device(), config, 5,
                                       {.quantization = quantization, .experts_on_device = share});
          const WeightBytes planned = EstimateWeights(
              config, {config, std::nullopt, quantization, nullptr}, {.experts = share}, true);
          EXPECT_EQ(decoder->weight_bytes(), planned.device);
          EXPECT_EQ(decoder->host_weight_bytes(), planned.host);
          return decoder;
        },
        1e-6);
  }
}

// Experts and layers on the host.
TEST_P(OffloadedExpertsTest, BesideOffloadedLayers) {
  if (!on_gpu()) GTEST_SKIP() << "on the CPU all weights are in the host's memory";
  if (!ModelConfig::FromModel(Directory(name())).recurrent.empty()) {
    GTEST_SKIP() << "layers with a state stay on the device";
  }
  const auto make = [&](double layers, double experts) {
    return LoadDecoder(device(), Directory(name()),
                       {.weights_on_device = layers, .experts_on_device = experts});
  };
  const auto whole = make(1, 1), both = make(0, 0.5);
  EXPECT_LE(RelativeError(Logits(*both), Logits(*whole)), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Models, OffloadedExpertsTest,
    ::testing::Combine(::testing::Values("qwen3_moe", "olmoe", "mixtral", "gpt_oss", "qwen2_moe",
                                         "qwen3_5_moe_text", "ernie4_5_moe", "glm4_moe",
                                         "minimax_m2", "gemma4_text-experts"),
                       ::testing::Values("cpu", "cuda")),
    TestName);

}  // namespace
}  // namespace litecache::model
