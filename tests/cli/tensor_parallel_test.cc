// Several ranks against one process: every family and KV policy must give the same losses, also
// after other engines in the same processes.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/block_format.h"
#include "cli/fixture_model.h"
#include "cli/policy_settings.h"
#include "cli/program.h"
#include "cli/rank_programs.h"
#include "device/cuda/cuda_devices.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/config.h"
#include "model/families.h"
#include "temporary_directory.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// Losses by configuration.
using Losses = std::map<std::string, std::vector<double>>;

Losses LossesOf(const std::string& file) {
  Losses losses;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json["type"] == "window") {
      losses[json["configuration"]] = json["nll"].get<std::vector<double>>();
    }
  }
  return losses;
}

// How a model runs, and how far most losses, and single ones, may be off.
struct Setting {
  int ranks = 2;
  std::vector<std::string> options = {"--dtype", "f32"};
  std::vector<std::string> environment = {};
  double tolerance = 2e-4, worst = 2e-4;
};

// The losses of all policies, on one process or several; an error's text is in the result.
std::pair<ProgramResult, Losses> Evaluate(const FixtureModel& model, const std::string& device,
                                          int ranks, const Setting& setting) {
  const auto config = model::ModelConfig::FromModel(model.path());
  const TemporaryDirectory directory;
  const auto text = directory.Write("text.txt", RandomText(1200));
  const std::string out = (directory.path() / "out.jsonl").string();
  std::vector<std::string> words = {"eval",
                                    "run",
                                    "--suite",
                                    "perplexity",
                                    "--model",
                                    model.path(),
                                    "--text",
                                    text,
                                    "--lengths",
                                    "320",
                                    "--count",
                                    "1",
                                    "--decode-tokens",
                                    "12",
                                    "--memory",
                                    "1GiB",
                                    "--json",
                                    out,
                                    "--policies",
                                    "full",
                                    "--device",
                                    device,
                                    "--threads",
                                    "1",
                                    "--tensor-parallel",
                                    std::to_string(ranks)};
  words.insert(words.end(), setting.options.begin(), setting.options.end());
  for (const PolicySetting& policy : PolicySettings()) {
    if (policy.name == "full" || (policy.predicts && !config.uniform())) continue;
    if (policy.name == "kvpr" && config.wide_qk_norm) continue;  // it is refused
    words.insert(words.end(), {"--config", policy.Configuration()});
  }
  const ProgramResult result = RunProgram(words, {.environment = setting.environment});
  return {result, LossesOf(out)};
}

void ExpectLossesOfOneProcess(const FixtureModel& model, const std::string& device,
                              const Setting& setting = {}) {
  const int ranks = setting.ranks;
  const auto config = model::ModelConfig::FromModel(model.path());
  const auto [alone, expected] = Evaluate(model, device, 1, setting);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  ASSERT_FALSE(expected.empty());
  const auto [together, losses] = Evaluate(model, device, ranks, setting);
  if (together.exit_code != 0) {
    const bool two_sizes = config.window_head_dim > 0;
    EXPECT_TRUE(two_sizes || config.delta.key_heads % 2 != 0) << together.err;
    EXPECT_THAT(together.err, HasSubstr("tensor-parallel = 2"));
    EXPECT_THAT(together.err,
                HasSubstr(two_sizes ? "heads of two sizes" : "cannot be divided evenly"));
    return;
  }
  ASSERT_EQ(losses.size(), expected.size());
  for (const auto& [policy, loss] : losses) {
    SCOPED_TRACE(policy);
    const auto& other = expected.at(policy);
    ASSERT_EQ(loss.size(), other.size());
    // Ranks that share a KV head select rows for their own query heads, fewer than all of its.
    if (config.kv_heads < ranks && policy == "litecache") continue;
    // The file has six digits; ranks add in another order. That can exchange rows of nearly equal
    // scores, which changes single losses of a policy that selects rows.
    std::vector<double> differences;
    for (size_t i = 0; i < loss.size(); ++i) differences.push_back(std::abs(loss[i] - other[i]));
    std::ranges::sort(differences);
    EXPECT_LT(differences[differences.size() / 2], setting.tolerance);
    EXPECT_LT(differences.back(),
              policy == "litecache" ? std::max(0.1, setting.worst) : setting.worst);
  }
}

class TensorParallelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParallelTest, LossesAreThoseOfOneProcess) {
  ExpectLossesOfOneProcess(FixtureModel(1024, GetParam()), "cpu");
}

TEST_P(TensorParallelTest, LossesAreThoseOfOneGpu) {
  if (FindCudaDevices().devices.size() < 2) GTEST_SKIP() << "it needs two GPUs";
  ExpectLossesOfOneProcess(FixtureModel(1024, GetParam()), "cuda");
}

// Ranks with whole experts, of fixtures that have an even number of them.
const Setting kWholeExperts = {.environment = {"LITECACHE_WHOLE_EXPERTS=1"}};

class WholeExpertsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(WholeExpertsTest, LossesAreThoseOfOneProcess) {
  ExpectLossesOfOneProcess(FixtureModel(1024, GetParam()), "cpu", kWholeExperts);
}

TEST_P(WholeExpertsTest, LossesAreThoseOfOneGpu) {
  if (FindCudaDevices().devices.size() < 2) GTEST_SKIP() << "it needs two GPUs";
  ExpectLossesOfOneProcess(FixtureModel(1024, GetParam()), "cuda", kWholeExperts);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, WholeExpertsTest,
                         ::testing::Values("gpt_oss", "qwen3_moe", "qwen3_next"),
                         [](const auto& info) { return info.param; });

// qwen3_moe with 12 experts of 96 columns, of which two ranks would have one and a half blocks.
class QuantizedExperts {
 public:
  QuantizedExperts() {
    const auto& directory = model_.directory();
    std::ifstream file(directory.path() / "config.json");
    auto config = Json::parse(file);
    config["num_local_experts"] = kExperts;
    config["moe_intermediate_size"] = kColumns;
    directory.Write("config.json", config.dump());
    io::SafetensorsWriter writer;
    {
      const io::Checkpoint source(directory.path());
      for (const std::string& name : source.TensorNames()) Add(source, name, &writer);
    }
    std::filesystem::remove(directory.path() / "model.safetensors");
    writer.Write(directory.path() / "model.safetensors");
  }
  const FixtureModel& model() const { return model_; }

 private:
  static constexpr int64_t kExperts = 12, kColumns = 96;

  // Columns are filled up with zeros. The experts that are added are like the first two, and are
  // chosen where these are not.
  static void Add(const io::Checkpoint& source, const std::string& name,
                  io::SafetensorsWriter* writer) {
    const io::Checkpoint::Tensor tensor = source.Find(name);
    std::vector<int64_t> shape = tensor.info->shape;
    const BlockFormat& format = *FindBlockFormat(tensor.info->dtype);
    std::vector<float> values(tensor.info->bytes() / static_cast<size_t>(format.bytes));
    format.to_float(tensor.data, static_cast<int64_t>(values.size()), values.data());
    const auto add = [&](const std::string& as) { writer->Add(as, DType::kBF16, shape, values); };
    const size_t at = name.find(".experts.");
    if (at != name.npos) {
      const bool down = name.ends_with(".down_proj.weight");
      values = Widened(values, shape[0], shape[1], down ? shape[0] : kColumns,
                       down ? kColumns : shape[1]);
      shape[down ? 1 : 0] = kColumns;
      for (const int expert : {0, 1}) {
        const std::string own = fmt::format(".experts.{}.", expert);
        if (name.find(own) != at) continue;
        add(std::string(name).replace(at, own.size(), fmt::format(".experts.{}.", 10 + expert)));
      }
    } else if (name.ends_with(".mlp.gate.weight")) {
      shape[0] = kExperts;
      for (int64_t i = 0; i < 2 * shape[1]; ++i) values.push_back(-values[static_cast<size_t>(i)]);
    }
    add(name);
  }
  static std::vector<float> Widened(const std::vector<float>& from, int64_t from_rows,
                                    int64_t from_cols, int64_t rows, int64_t cols) {
    std::vector<float> to(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < from_rows; ++row) {
      std::copy_n(from.begin() + row * from_cols, from_cols, to.begin() + row * cols);
    }
    return to;
  }

  FixtureModel model_{1024, "qwen3_moe"};
};

// Products of bf16, whose rounding is that of the losses, and can exchange experts of nearly equal
// scores: single losses then differ by more (0.18 was seen, and as much between policies full and
// kvpr of one process). Of o_proj, too, blocks would be cut.
Setting Quantized(int ranks) {
  return {.ranks = ranks,
          .options = {"--quantize", "q8_0,o_proj=none"},
          .tolerance = 0.03,
          .worst = 0.6};
}

TEST(QuantizedExpertsTest, LossesAreThoseOfOneProcess) {
  const QuantizedExperts experts;
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    ExpectLossesOfOneProcess(experts.model(), "cpu", Quantized(ranks));
    Setting exact = kWholeExperts;
    exact.ranks = ranks;
    ExpectLossesOfOneProcess(experts.model(), "cpu", exact);
  }
}

TEST(QuantizedExpertsTest, LossesAreThoseOfOneGpu) {
  const size_t gpus = FindCudaDevices().devices.size();
  if (gpus < 2) GTEST_SKIP() << "it needs two GPUs";
  const QuantizedExperts experts;
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    if (static_cast<size_t>(ranks) > gpus) continue;
    ExpectLossesOfOneProcess(experts.model(), "cuda", Quantized(ranks));
  }
}

// Two of the four share a KV head.
TEST(FourRanksTest, LossesAreThoseOfOneProcess) {
  ExpectLossesOfOneProcess(FixtureModel(1024, "llama-bias"), "cpu", {.ranks = 4});
}

TEST(RankCountersTest, AllHeadsAreCounted) {
  const FixtureModel model(1024, "llama-bias");
  Json stats[2];
  for (const int ranks : {1, 2}) {
    std::vector<std::string> words = {"generate",     "--temperature", "0",
                                      "--ignore-eos", "--json",        "-n",
                                      "40",           "--kv-budget",   "32"};
    const auto options = RankOptions(model, "litecache", ranks);
    words.insert(words.end(), options.begin(), options.end());
    const auto result = RunProgram(words, {.input = RandomText(300)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    stats[ranks - 1] = Json::parse(result.out)["stats"]["kv"];
  }
  EXPECT_EQ(stats[1]["heads"], stats[0]["heads"]);
  // The other rank's last step may be missing.
  for (const char* counter : {"lookups", "attention_bytes_read"}) {
    const double alone = stats[0][counter], together = stats[1][counter];
    EXPECT_GT(alone, 0) << counter;
    EXPECT_GE(together, 0.9 * alone) << counter;
    EXPECT_LE(together, alone) << counter;
  }
}

std::vector<std::string> FixturesOfFamilies() {
  std::vector<std::string> names;
  for (const model::FamilySpec& family : model::Families()) {
    names.emplace_back(model::Name(family.family));
  }
  names.insert(names.end(), {"llama-bias", "qwen2-window"});
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, TensorParallelTest, ::testing::ValuesIn(FixturesOfFamilies()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace litecache::testing
