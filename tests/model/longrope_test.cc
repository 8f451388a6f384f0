// longrope has two sets of factors; the context that a model will have chooses one.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "expect_error.h"
#include "io/json.h"
#include "model/config_testing.h"
#include "model/fingerprint.h"
#include "reference.h"
#include "temporary_directory.h"

namespace litecache::model {
namespace {

using ::litecache::testing::TemporaryDirectory;

// Phi-3.5's config, with heads of 8 dimensions.
json Phi() {
  json config = With(OfFamily("Phi3ForCausalLM"), "head_dim", 8);
  config["original_max_position_embeddings"] = 4096;
  config["rope_scaling"] = {
      {"type", "longrope"}, {"long_factor", {1.5, 2, 4, 64}}, {"short_factor", {1, 1.25, 1.5, 3}}};
  return config;
}

TEST(LongRopeTest, TheContextChoosesTheFactors) {
  ModelConfig config = Parse(Phi());
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLongRope);
  const std::vector<float> of_long = {1.5, 2, 4, 64}, of_short = {1, 1.25, 1.5, 3};
  EXPECT_EQ(config.max_context, 131072);
  EXPECT_EQ(config.rope.factors, of_long);
  config.LimitContext(4097);
  EXPECT_EQ(config.rope.factors, of_long);
  config.LimitContext(4096);
  EXPECT_EQ(config.rope.factors, of_short);
  EXPECT_EQ(Parse(With(Phi(), "max_position_embeddings", 4096)).rope.factors, of_short);
  ModelConfig other = Parse(Llama());
  other.LimitContext(1);
  EXPECT_TRUE(other.rope.factors.empty());
}

TEST(LongRopeTest, AttentionFactor) {
  const auto factor = [](const json& config) {
    return MakeRopeTable(Parse(config).rope, 8).attention_factor;
  };
  EXPECT_FLOAT_EQ(factor(Phi()), std::sqrt(1 + 5 * std::log(2.0) / (12 * std::log(2.0))));
  json given = Phi();
  given["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(factor(given), 1.5f);
  given["rope_scaling"] = Phi()["rope_scaling"];
  given["rope_scaling"]["factor"] = 4096;
  EXPECT_FLOAT_EQ(factor(given), std::sqrt(2.0));
  EXPECT_EQ(factor(With(Phi(), "max_position_embeddings", 4096)), 1);
}

TEST(LongRopeTest, OldNames) {
  for (const char* type : {"su", "yarn"}) {
    json config = Phi();
    config["rope_scaling"]["type"] = type;
    EXPECT_EQ(Parse(config).rope.factors, Parse(Phi()).rope.factors) << type;
  }
}

TEST(LongRopeTest, NamesWhatIsWrong) {
  const auto with = [](const char* key, const json& value) {
    json config = Phi();
    config["rope_scaling"][key] = value;
    return config;
  };
  EXPECT_ERROR(Parse(with("long_factor", nullptr)), FileError, "rope_scaling.long_factor");
  EXPECT_ERROR(Parse(with("short_factor", 2)), FileError, "rope_scaling.short_factor");
  EXPECT_ERROR(Parse(with("short_factor", {1, 1, 1, 0})), FileError, "rope_scaling.short_factor");
  EXPECT_ERROR(Parse(with("short_factor", {1, 1, 1, "2"})), FileError, "rope_scaling.short_factor");
  EXPECT_ERROR(Parse(with("long_factor", {1, 1, 1})), FileError, "rope_scaling", "4 elements");
  EXPECT_ERROR(Parse(With(Phi(), "original_max_position_embeddings", 1)), FileError,
               "original_max_position_embeddings");
  json layers = Without(OfFamily("Olmo3ForCausalLM"), "rope_theta");
  layers["rope_parameters"]["sliding_attention"] = Phi()["rope_scaling"];
  EXPECT_ERROR(Parse(layers), FileError, "rope_parameters", "64 elements");
}

// Logits at the end of the prompt's first 150 tokens.
std::vector<float> Logits(const std::filesystem::path& model, int64_t max_context) {
  CpuDevice device(2);
  const auto decoder = LoadDecoder(device, model, {.max_context = max_context});
  const Reference reference("phi3-longrope");
  const std::vector<int32_t> prompt(reference.prompt.begin(), reference.prompt.begin() + 150);
  Runner runner(device, *decoder);
  const std::vector<int32_t> last = {149};
  return runner.Prefill(runner.Create(), prompt, 150, last);
}

TEST(LongRopeTest, TheEnginesContextReachesTheModel) {
  const std::filesystem::path model = FixturesDirectory() / "phi3-longrope";
  json config = io::ReadJsonFile(model / "config.json");
  config["rope_parameters"]["long_factor"] = config["rope_parameters"]["short_factor"];
  const TemporaryDirectory only_short;
  only_short.Write("config.json", config.dump());
  std::filesystem::create_symlink(model / "model.safetensors",
                                  only_short.path() / "model.safetensors");
  EXPECT_EQ(Logits(model, 200), Logits(only_short.path(), 0));
  EXPECT_EQ(Logits(model, 201), Logits(model, 0));
  EXPECT_NE(Logits(model, 200), Logits(model, 0));
  EXPECT_NE(Fingerprint(model, 200), Fingerprint(model));
  EXPECT_EQ(Fingerprint(model, 201), Fingerprint(model));
}

}  // namespace
}  // namespace litecache::model
