#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "model/reference.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

// Mean negative log-likelihood of the tokens from their logits, in double.
double MeanNll(const std::vector<std::vector<float>>& logits, const std::vector<int32_t>& tokens) {
  double sum = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    double total = 0;
    for (const float value : logits[i]) total += std::exp(static_cast<double>(value));
    sum += std::log(total) - logits[i][static_cast<size_t>(tokens[i + 1])];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

class LogitsTest : public ::testing::Test {
 protected:
  ProgramResult Logits(const std::string& positions, const std::string& model) const {
    return RunProgram({"logits", "--model", FixtureDirectory(model).string(), "--tokens-file",
                       file_, "--positions", positions, "--json"});
  }

  void Write(const std::vector<int32_t>& tokens) {
    file_ = directory_.Write("tokens.txt", Join(tokens)).string();
  }

  TemporaryDirectory directory_;
  std::string file_;
};

TEST_F(LogitsTest, EqualTransformers) {
  const std::pair<const char*, double> models[] = {{"llama-llama3", 1e-4}, {"qwen2", 2e-2}};
  for (const auto& [model, tolerance] : models) {
    const model::Reference reference(model);
    Write(reference.prompt);
    const auto result = Logits(fmt::format("{}", fmt::join(reference.positions, ",")), model);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["positions"].get<std::vector<int32_t>>(), reference.positions);
    std::vector<float> logits;
    for (const auto& row : json["logits"]) {
      for (const auto& value : row) logits.push_back(value.get<float>());
    }
    EXPECT_LT(model::RelativeError(logits, reference.logits), tolerance) << model;
  }
}

TEST_F(LogitsTest, NllFollowsFromTheLogits) {
  const std::vector<int32_t> tokens = {1, 50, 60, 191, 0, 77, 50, 60, 3, 3, 120};
  Write(tokens);
  const auto all = nlohmann::json::parse(Logits("all", "llama-llama3").out);
  const auto logits = all["logits"].get<std::vector<std::vector<float>>>();
  ASSERT_EQ(logits.size(), tokens.size());
  EXPECT_NEAR(all["nll"].get<double>(), MeanNll(logits, tokens), 1e-5);
  // Negative positions count from the end.
  const auto last = nlohmann::json::parse(Logits("-1,0", "llama-llama3").out);
  EXPECT_EQ(last["positions"], (std::vector<int>{10, 0}));
  EXPECT_EQ(last["logits"][0].get<std::vector<float>>(), logits[10]);
  EXPECT_EQ(last["logits"][1].get<std::vector<float>>(), logits[0]);
  EXPECT_EQ(last["nll"], all["nll"]);
}

TEST_F(LogitsTest, OneTokenHasNoNll) {
  Write({5});
  const auto json = nlohmann::json::parse(Logits("0", "llama").out);
  EXPECT_TRUE(json["nll"].is_null());
  EXPECT_EQ(json["logits"][0].size(), 192u);
}

TEST_F(LogitsTest, TextShowsTheLikeliestTokens) {
  Write({1, 50, 60});
  const auto result =
      RunProgram({"logits", "--model", SharedModel().path(), "--tokens-file", file_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("position 2"));
  EXPECT_THAT(result.out, HasSubstr("perplexity"));
}

TEST_F(LogitsTest, ErrorsNameTheNumbers) {
  Write({1, 50, 60});
  const auto expect = [&](const std::string& positions, int code, const std::string& part) {
    const auto result = Logits(positions, "llama");
    EXPECT_EQ(result.exit_code, code);
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(result.out, "");
  };
  expect("3", 2, "positions 0 to 2");
  expect("-4", 2, "-4");
  expect("0,x", 2, "'x'");
  Write({1, 192});
  expect("0", 2, "192");
  Write({});
  expect("0", 2, "no token ids");
  Write(std::vector<int32_t>(1025, 9));
  expect("0", 1, "1025");
}

}  // namespace
}  // namespace litecache::testing
