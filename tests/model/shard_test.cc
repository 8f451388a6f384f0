#include "model/shard.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "model/weight_placement.h"
#include "scoped_variable.h"

namespace litecache::model {
namespace {

using testing::ScopedVariable;

WeightTypes TypesOf(const ModelConfig& whole, const char* quantization) {
  return {whole, std::nullopt, Quantization::Parse(quantization), nullptr};
}

ExpertConfig ExpertsOf(const char* shape, const char* quantization, int rank, int ranks) {
  const auto whole = ModelConfig::FromShapeName(shape);
  return ShardOf(whole, TypesOf(whole, quantization), rank, ranks).experts;
}

// Experts of 768, 14336 and 2880 columns.
TEST(ShardTest, EachExpertIsDividedBetweenBlocks) {
  for (const auto& [shape, quantization, columns] : {std::tuple("qwen3-30b-a3b", "", 384),
                                                     {"qwen3-30b-a3b", "q8_0", 384},
                                                     {"qwen3-30b-a3b", "q4_k,down_proj=q5_0", 384},
                                                     {"mixtral-8x7b", "q4_k", 7168},
                                                     {"gpt-oss-20b", "q4_0", 1440}}) {
    SCOPED_TRACE(std::string(shape) + " " + quantization);
    const ExpertConfig experts = ExpertsOf(shape, quantization, 1, 2);
    EXPECT_EQ(experts.intermediate, columns);
    EXPECT_EQ(experts.own.count, 0);
    EXPECT_EQ(experts.own_count(), experts.count);
  }
}

TEST(ShardTest, ExpertsStayWholeWhereBlocksWouldBeCut) {
  for (const int ranks : {2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const ExpertConfig experts = ExpertsOf("qwen3-30b-a3b", "q4_k", rank, ranks);
      EXPECT_EQ(experts.intermediate, 768);
      EXPECT_EQ(experts.count, 128);
      EXPECT_EQ(experts.own.count, 128 / ranks);
      EXPECT_EQ(experts.own.first, rank * 128 / ranks);
    }
  }
  const ScopedVariable variable("LITECACHE_WHOLE_EXPERTS", "1");
  const ExpertConfig experts = ExpertsOf("qwen3-next-80b-a3b", "", 1, 2);
  EXPECT_EQ(experts.own.first, 256);
  EXPECT_EQ(experts.own.count, 256);
  EXPECT_EQ(experts.intermediate, 512);
  EXPECT_EQ(experts.shared, 256);
}

TEST(ShardTest, ExpertsThatCannotBeDividedAreRefused) {
  auto whole = ModelConfig::FromShapeName("qwen3-30b-a3b");
  whole.experts.count = 127;
  EXPECT_ERROR(ShardOf(whole, TypesOf(whole, "q4_k"), 0, 2), InvalidArgument,
               "384 columns of model.layers.0.mlp.experts.0.down_proj.weight", "blocks of 256",
               "its 127 experts cannot be divided evenly either");
  whole.experts.intermediate = 767;
  EXPECT_ERROR(ShardOf(whole, TypesOf(whole, ""), 0, 2), InvalidArgument,
               "the model's 767 columns of experts cannot be divided evenly", "its 127 experts");
}

// Whole experts are counted once over all ranks, on the device and in host memory.
TEST(ShardTest, MemoryOfWholeExperts) {
  const auto whole = ModelConfig::FromShapeName("qwen3-30b-a3b");
  const WeightTypes types = TypesOf(whole, "q4_k");
  for (const bool gpu : {false, true}) {
    for (const double share : {1.0, 0.25}) {
      const WeightShares shares{.experts = share};
      const WeightBytes all = EstimateWeights(whole, types, shares, gpu);
      WeightBytes sum;
      for (int rank = 0; rank < 4; ++rank) {
        const WeightBytes own = EstimateWeights(ShardOf(whole, types, rank, 4), types, shares, gpu);
        sum.device += own.device;
        sum.host += own.host;
      }
      EXPECT_EQ(sum.host, all.host);
      EXPECT_GE(sum.device, all.device);
      // Every rank has the routers and the norms.
      EXPECT_LT(sum.device, all.device + all.device / 50);
    }
  }
  int64_t parameters = 0;
  for (int rank = 0; rank < 4; ++rank) {
    parameters += ShardOf(whole, types, rank, 4).parameters();
  }
  EXPECT_GE(parameters, whole.parameters());
  EXPECT_LT(parameters, whole.parameters() + whole.parameters() / 10);
}

TEST(ShardTest, TensorsOfWholeExperts) {
  const auto whole = ModelConfig::FromShapeName("qwen3-30b-a3b");
  const ModelConfig part = ShardOf(whole, TypesOf(whole, "q4_k"), 1, 2);
  for (const char* name : {"model.layers.0.mlp.experts.70.down_proj.weight",
                           "model.layers.0.mlp.experts.*.down_proj.bias"}) {
    const TensorPart tensor = PartOf(part, name, 2048, 768);
    EXPECT_TRUE(tensor.whole()) << name;
    EXPECT_FALSE(tensor.zero) << name;
  }
  EXPECT_FALSE(PartOf(part, "model.layers.0.self_attn.o_proj.weight", 2048, 2048).whole());
}

}  // namespace
}  // namespace litecache::model
