// Frequencies compared with Transformers' rotary embedding, for every parameter set of rope.json.
#include <gtest/gtest.h>

#include "io/json.h"
#include "model/config.h"
#include "reference.h"

namespace litecache::model {
namespace {

TEST(RopeTest, EqualToTransformers) {
  const nlohmann::json cases = io::ReadJsonFile(FixturesDirectory() / "rope.json");
  ASSERT_GT(cases.size(), 100u);
  double worst = 0;
  for (const nlohmann::json& item : cases) {
    const std::string text = item["config"].dump();
    const ModelConfig config = ModelConfig::FromJson(text, "config");
    const RopeTable table = MakeRopeTable(config.rope, config.head_dim);
    const auto expected = item["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(table.inv_freq.size(), expected.size()) << text;
    ASSERT_EQ(static_cast<int64_t>(expected.size()), config.head_dim / 2);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = std::abs(table.inv_freq[i] / expected[i] - 1);
      worst = std::max(worst, error);
      // A dozen float operations of half an ulp each; torch's pow adds one or two.
      EXPECT_LT(error, 8 * 0x1p-23) << text << " frequency " << i;
    }
    EXPECT_NEAR(table.attention_factor, item["attention_factor"].get<double>(), 1e-6) << text;
  }
  std::cout << cases.size() << " parameter sets, largest relative error " << worst << "\n";
}

TEST(RopeTest, ContextStretchedByScaling) {
  const auto context = [](const std::string& scaling) {
    return ModelConfig::FromJson(
               R"({"architectures":["LlamaForCausalLM"],"vocab_size":10,"hidden_size":64,
                   "intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,
                   "max_position_embeddings":32768,"rope_scaling":)" +
                   scaling + "}",
               "c")
        .max_context;
  };
  EXPECT_EQ(context("null"), 32768);
  EXPECT_EQ(context(R"({"type":"yarn","factor":4,"original_max_position_embeddings":32768})"),
            131072);
  EXPECT_EQ(context(R"({"type":"yarn","factor":4,"original_max_position_embeddings":8192})"),
            32768);
  EXPECT_EQ(context(R"({"type":"linear","factor":2})"), 65536);
  EXPECT_EQ(context(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
                        "original_max_position_embeddings":8192})"),
            32768);
  EXPECT_EQ(context(R"({"type":"linear","factor":1000000})"), int64_t{1} << 30);
}

}  // namespace
}  // namespace litecache::model
