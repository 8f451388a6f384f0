#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

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
      // Weights once, and the KV rows of every sequence: 768 bytes a token.
      const double weights = json["model"]["weight_bytes"];
      const double kv = batch * (row["context"].get<double>() + 2 + 1) * 768;
      EXPECT_NEAR(row["bytes_per_step"].get<double>(), weights + kv, 0.15 * weights);
      EXPECT_GE(row["floor_ms"].get<double>() * 1e6 * bandwidth,
                row["bytes_per_step"].get<double>() * 0.999);
      EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["ms_per_step"].get<double>() / 1e3, batch,
                  1e-6);
    }
  }
}

TEST(Bench, AShapeNeedsNoFiles) {
  const auto result = Bench({"--shape", "opt-125m", "--weights", "random", "--context", "16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("opt-125m"));
  EXPECT_THAT(result.out, HasSubstr("x floor"));
}

TEST(Bench, ImposesReuse) {
  const auto result = RunProgram({"bench",
                                  "--model",
                                  FixtureDirectory("llama").string(),
                                  "--policies",
                                  "full,litecache",
                                  "--no-resident-first-layer",
                                  "--recent",
                                  "8",
                                  "--carry",
                                  "0",
                                  "--context",
                                  "300",
                                  "--batch",
                                  "2",
                                  "--only",
                                  "decode",
                                  "--steps",
                                  "40",
                                  "--hit-ratio",
                                  "0.6",
                                  "--overlap",
                                  "0.75",
                                  "--breakdown",
                                  "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["imposed"]["hit_ratio"], 0.6);
  EXPECT_EQ(json["imposed"]["overlap"], 0.75);
  ASSERT_EQ(json["decode"].size(), 2u);
  const auto &full = json["decode"][0], &lite = json["decode"][1];
  EXPECT_FALSE(full.contains("hit_ratio"));
  EXPECT_NEAR(lite["hit_ratio"].get<double>(), 0.6, 0.02);
  // A head has 31 to 35 rows and misses at 4 of 10 steps: a quarter of them travel.
  const double heads = 2.0 * json["model"]["kv_heads"].get<double>();
  EXPECT_NEAR(lite["rows_moved_per_step"].get<double>(), heads * 0.4 * 33 * 0.25, heads * 0.4);
  for (const auto& row : json["decode"]) {
    EXPECT_GT(row["cpu_seconds_per_step"].get<double>(), 0);
    double sum = 0;
    for (const char* part :
         {"attention", "transfer", "retrieval", "management", "products", "imposed", "rest"}) {
      const double ms = row["breakdown"][std::string(part) + "_ms"];
      EXPECT_GE(ms, 0) << part;
      sum += ms;
    }
    // Medians of parts and the median of steps: on a busy machine they come from different steps.
    EXPECT_GE(sum, 0.9 * row["ms_per_step"].get<double>());
    EXPECT_GT(row["breakdown"]["products_ms"].get<double>(), 0);
    EXPECT_GT(row["breakdown"]["attention_ms"].get<double>(), 0);
  }
  EXPECT_EQ(full["breakdown"]["retrieval_ms"], 0);
  EXPECT_GT(lite["breakdown"]["retrieval_ms"].get<double>(), 0);
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
  expect({"--model", model, "--context", "1024"}, 2, "1024");
  expect({"--model", model, "--batch", "0"}, 2, "--batch");
  expect({"--model", model, "--hit-ratio", "0.5"}, 2, "litecache");
  expect({"--model", model, "--hit-ratio", "1.5"}, 2, "--hit-ratio");
  expect({"--model", model, "--batch", "1,x"}, 2, "x");
  expect({"--model", model, "--context", ""}, 2, "--context");
  expect({"--model", model, "--batch", "1k", "--context", "900", "--memory", "64MiB"}, 1,
         "64.0 MiB");
  expect({"--model", model, "--batch", "100", "--context", "900", "--memory", "64MiB"}, 1,
         "tokens of context fit");
}

}  // namespace
}  // namespace litecache::testing
