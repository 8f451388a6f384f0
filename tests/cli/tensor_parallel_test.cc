// Several ranks against one process: every family and KV policy must give the same losses, also
// after other engines in the same processes; a rank that is killed must end what runs.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/policy_settings.h"
#include "cli/program.h"
#include "model/config.h"
#include "model/families.h"
#include "server/http_client.h"
#include "source_directory.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string RandomText(size_t size) {
  std::mt19937_64 random = TestRandom(7);
  std::string text;
  while (text.size() < size) {
    for (int letters = 1 + static_cast<int>(random() % 6); letters > 0; --letters) {
      text += static_cast<char>('a' + random() % 26);
    }
    text += ' ';
  }
  return text;
}

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

class TensorParallelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParallelTest, LossesAreThoseOfOneProcess) {
  const FixtureModel model(1024, GetParam());
  const auto config = model::ModelConfig::FromModel(model.path());
  const TemporaryDirectory directory;
  const auto text = directory.Write("text.txt", RandomText(1200));
  const auto run = [&](int ranks) {
    const std::string out = (directory.path() / (std::to_string(ranks) + ".jsonl")).string();
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
                                      "--dtype",
                                      "f32",
                                      "--decode-tokens",
                                      "12",
                                      "--memory",
                                      "1GiB",
                                      "--json",
                                      out,
                                      "--policies",
                                      "full",
                                      "--device",
                                      "cpu",
                                      "--threads",
                                      "1",
                                      "--tensor-parallel",
                                      std::to_string(ranks)};
    for (const PolicySetting& policy : PolicySettings()) {
      if (policy.name == "full" || (policy.predicts && !config.uniform())) continue;
      words.insert(words.end(), {"--config", policy.Configuration()});
    }
    const ProgramResult result = RunProgram(words);
    return std::pair(result, LossesOf(out));
  };
  const auto [alone, expected] = run(1);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  ASSERT_FALSE(expected.empty());
  const auto [together, losses] = run(2);
  if (together.exit_code != 0) {
    EXPECT_TRUE(config.wide_qk_norm || config.delta.key_heads % 2 != 0) << together.err;
    EXPECT_THAT(together.err, HasSubstr("tensor_parallel = 2"));
    EXPECT_THAT(together.err, HasSubstr("divided"));
    return;
  }
  ASSERT_EQ(losses.size(), expected.size());
  for (const auto& [policy, loss] : losses) {
    SCOPED_TRACE(policy);
    const auto& other = expected.at(policy);
    ASSERT_EQ(loss.size(), other.size());
    // Ranks that share a KV head select rows for their own query heads, fewer than all of its.
    if (config.kv_heads < 2 && policy == "litecache") continue;
    // The file has six digits; ranks add in another order.
    for (size_t i = 0; i < loss.size(); ++i) EXPECT_NEAR(loss[i], other[i], 2e-4) << i;
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
