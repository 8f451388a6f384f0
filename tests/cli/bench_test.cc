#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

ProgramResult Bench(std::vector<std::string> more) {
  more.insert(more.begin(), {"bench", "--steps", "3", "--repeats", "1"});
  return RunProgram(more);
}

TEST(Bench, NumbersAreConsistent) {
  for (const char* fill : {"synthetic", "prefill"}) {
    const auto result = Bench({"--model", FixtureDirectory("llama").string(), "--batch", "1,3",
                               "--context", "64,100", "--fill", fill, "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    const double bandwidth = json["machine"]["gb_per_s"];
    const double rate = json["machine"]["gflop_per_s"];
    EXPECT_GT(bandwidth, 0.1);
    EXPECT_GT(rate, 0.1);
    ASSERT_EQ(json["prefill"].size(), 2u);
    ASSERT_EQ(json["decode"].size(), 4u);
    EXPECT_EQ(json["fill"], fill);
    for (const auto& row : json["prefill"]) {
      EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["seconds"].get<double>(),
                  row["context"].get<double>(), 1e-6);
      EXPECT_NEAR(row["ratio_to_floor"].get<double>() * row["floor_s"].get<double>(),
                  row["seconds"].get<double>(), 1e-9);
      EXPECT_GE(row["floor_s"].get<double>() * 1e9 * rate, row["flops"].get<double>() * 0.999);
    }
    for (const auto& row : json["decode"]) {
      const double batch = row["batch"];
      // Weights once, and the KV rows of every sequence: 768 bytes per token.
      const double weights = json["model"]["weight_bytes"];
      const double kv = batch * (row["context"].get<double>() + 2 + 1) * 768;
      EXPECT_NEAR(row["bytes_per_step"].get<double>(), weights + kv, 0.15 * weights);
      EXPECT_GE(row["floor_ms"].get<double>() * 1e6 * bandwidth,
                row["bytes_per_step"].get<double>() * 0.999);
      EXPECT_GE(row["slowest_ms"], row["ms_per_step"]);
      EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["ms_per_step"].get<double>() / 1e3, batch,
                  1e-6);
      // Prompts and steps together are a generation; synthetic rows are not.
      const bool prompts = std::string_view(fill) == "prefill";
      ASSERT_EQ(row.contains("prompts_s"), prompts);
      ASSERT_EQ(row.contains("all_steps_s"), prompts);
      if (!prompts) continue;
      EXPECT_GT(row["prompts_s"].get<double>(), 0);
      // The median and the maximum of three steps.
      EXPECT_GE(row["all_steps_s"].get<double>() * 1e3,
                2 * row["ms_per_step"].get<double>() * 0.999);
    }
  }
}

TEST(Bench, AShapeNeedsNoFiles) {
  const auto result = Bench({"--shape", "opt-125m", "--weights", "random", "--context", "16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("opt-125m"));
  EXPECT_THAT(result.out, HasSubstr("x floor"));
  EXPECT_THAT(result.out, HasSubstr("slowest"));
  const auto few = Bench({"--shape", "opt-125m", "--layers", "2", "--context", "16"});
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_THAT(few.out, HasSubstr("opt-125m (2 of 12 layers)"));
}

TEST(Bench, ErrorsComeBeforeTheWork) {
  const std::string model = FixtureDirectory("llama").string();
  const auto expect = [](const std::vector<std::string>& words, int code, const std::string& part) {
    const auto result = Bench(words);
    EXPECT_EQ(result.exit_code, code) << part;
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  expect({}, 2, "--shape");
  expect({"--shape", "llama9"}, 2, "llama3.2-1b");
  expect({"--shape", "llama3-8b", "--memory", "1GiB"}, 1, "1.00 GiB");
  expect({"--shape", "opt-125m", "--layers", "13"}, 2, "--layers 13");
  expect({"--model", model, "--layers", "1"}, 2, "--shape");
  expect({"--model", model, "--exact"}, 2, "litecache generate");
  expect({"--model", model, "--draft", "lookup"}, 2, "litecache generate");
  expect({"--model", model, "--context", "1024"}, 2, "1024");
  expect({"--model", model, "--batch", "0"}, 2, "--batch");
  expect({"--model", model, "--batch", "1,x"}, 2, "x");
  expect({"--model", model, "--context", ""}, 2, "--context");
  expect({"--model", model, "--batch", "1k", "--context", "900", "--memory", "64MiB"}, 1,
         "64.0 MiB");
  // Reported before 16 GB of weights are made.
  expect({"--shape", "llama3-8b", "--memory", "20GiB", "--context", "100k", "--batch", "64"}, 1,
         "tokens of context fit");
  expect({"--model", model, "--batch", "100", "--context", "900", "--memory", "64MiB"}, 1,
         "tokens of context fit");
}

}  // namespace
}  // namespace litecache::testing
