#include <gtest/gtest.h>

#include <map>

#include "expect_error.h"
#include "model/config.h"
#include "model/decoder.h"

namespace litecache::model {
namespace {

// Parameter counts published by the model hubs for these checkpoints: a single wrong width, layer
// count or bias changes them.
TEST(ShapesTest, ParameterCountsArePublishedOnes) {
  const std::map<std::string, int64_t> published = {
      {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824},
      {"llama3-8b", 8'030'261'248},
      {"llama3.1-8b", 8'030'261'248},
      {"llama3.1-70b", 70'553'706'496},
      {"llama2-7b", 6'738'415'616},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen3-8b", 8'190'735'360},
      {"mistral-7b", 7'248'023'552},
      {"opt-125m", 125'239'296},
      {"opt-6.7b", 6'658'473'984},
      {"qwen3-32b", 32'762'123'264},
      {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},
      {"gemma2-2b", 2'614'341'888},
      {"gemma2-9b", 9'241'705'984},
      {"gemma2-27b", 27'227'128'320},
      // Gemma 3 without its vision tower and the projection behind it.
      {"gemma3-270m", 268'098'176},
      {"gemma3-1b", 999'885'952},
      {"gemma3-4b", 3'880'263'168},
      {"gemma3-12b", 11'766'034'176},
      {"gemma3-27b", 27'009'346'304},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"ministral3-8b", 8'489'553'920},
      {"mixtral-8x7b", 46'702'792'704},
      {"olmoe-7b", 6'919'161'856},
      // Without vision, as Transformers counts them.
      {"qwen3.5-9b", 8'953'803'264},
      {"qwen3.5-27b", 26'895'998'464},
      {"qwen1.5-moe-a2.7b", 14'315'784'192},
      {"qwen3.5-35b-a3b", 34'660'610'688},
      {"qwen3-next-80b-a3b", 79'674'391'296},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
  };
  EXPECT_EQ(ModelConfig::ShapeNames().size(), published.size());
  for (const std::string& name : ModelConfig::ShapeNames()) {
    ASSERT_TRUE(published.contains(name)) << name;
    EXPECT_EQ(ModelConfig::FromShapeName(name).parameters(), published.at(name)) << name;
  }
}

TEST(ShapesTest, HeadsAndScaling) {
  const auto llama = ModelConfig::FromShapeName("llama3.2-1b");
  EXPECT_EQ(llama.head_dim, 64);
  EXPECT_EQ(llama.group(), 4);
  EXPECT_EQ(llama.max_context, 131072);
  EXPECT_EQ(llama.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama.kv_layout(DType::kBF16).token_bytes(), 32768u);
  EXPECT_EQ(ModelConfig::FromShapeName("qwen2.5-14b").head_dim, 128);
  EXPECT_EQ(ModelConfig::FromShapeName("llama3-8b").rope.scaling, RopeScaling::kNone);
}

TEST(ShapesTest, UnknownNamesListTheKnownOnes) {
  EXPECT_ERROR(ModelConfig::FromShapeName("gpt-5"), InvalidArgument, "'gpt-5'", "llama3.2-1b",
               "opt-13b");
}

}  // namespace
}  // namespace litecache::model
