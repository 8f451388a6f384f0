// litecache-lab's own commands, and the additions of its bench to the product's.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LabBench, ForcesReuse) {
  const auto result = RunProgram({"bench",
                                  "--model",
                                  FixtureDirectory("llama").string(),
                                  "--policies",
                                  "full,litecache",
                                  "--no-resident-first-layer",
                                  "--kv-budget",
                                  "10%",
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
  EXPECT_EQ(json["forced"]["hit_ratio"], 0.6);
  EXPECT_EQ(json["forced"]["overlap"], 0.75);
  ASSERT_EQ(json["decode"].size(), 2u);
  const auto &full = json["decode"][0], &lite = json["decode"][1];
  EXPECT_FALSE(full.contains("hit_ratio"));
  EXPECT_NEAR(lite["hit_ratio"].get<double>(), 0.6, 0.02);
  // A head has 31 to 35 rows and misses at 4 of 10 steps: a quarter of them is transferred.
  const double heads = 2.0 * json["model"]["kv_heads"].get<double>();
  EXPECT_NEAR(lite["rows_moved_per_step"].get<double>(), heads * 0.4 * 33 * 0.25, heads * 0.4);
  for (const auto& row : json["decode"]) {
    EXPECT_GT(row["cpu_seconds_per_step"].get<double>(), 0);
    double sum = 0;
    for (const char* part : {"attention", "transfer", "retrieval", "management", "products",
                             "override", "rest", "launch"}) {
      const double ms = row["breakdown"][std::string(part) + "_ms"];
      EXPECT_GE(ms, 0) << part;
      sum += ms;
    }
    // Medians of parts against the median of steps: on a busy machine they come from different
    // steps.
    EXPECT_GE(sum, 0.9 * row["ms_per_step"].get<double>());
    // The marks enclose the step: only the call is outside.
    EXPECT_LT(row["breakdown"]["launch_ms"].get<double>(), 0.3 * row["ms_per_step"].get<double>());
    // What steps with marks take longer is taken for the marks' own time, and subtracted: on a busy
    // machine that may leave nothing of a short part.
    EXPECT_GT(row["breakdown"]["products_ms"].get<double>() +
                  row["breakdown"]["attention_ms"].get<double>(),
              0);
  }
  EXPECT_EQ(full["breakdown"]["retrieval_ms"], 0);
  EXPECT_GT(lite["breakdown"]["retrieval_ms"].get<double>(), 0);
}

TEST(LabBench, ReplaysTheBlocksOfAPrompt) {
  const FixtureModel model(8192);
  const TemporaryDirectory directory;
  const std::string text = (directory.path() / "text.txt").string();
  const std::string blocks = (directory.path() / "a.blocks").string();
  std::ofstream file(text);
  for (int line = 0; line < 900; ++line) file << "line " << line * line % 977 << " of the text\n";
  file.close();
  const auto recorded =
      RunProgram({"record-blocks", "--model", model.path(), "--text", text, "--context", "6400",
                  "--prefill-mass", "0.5", "--device", "cpu", "-o", blocks});
  ASSERT_EQ(recorded.exit_code, 0) << recorded.err;
  EXPECT_THAT(recorded.out, HasSubstr("6400 tokens"));
  EXPECT_THAT(recorded.out, HasSubstr("kept for 50% of the attention"));

  const auto bench = [&](const std::string& prefill) {
    return RunProgram({"bench", "--model", model.path(), "--device", "cpu", "--policies",
                       "full,litecache", "--prefill", prefill, "--context", "6400,7000", "--only",
                       "prefill", "--repeats", "0", "--prompt-blocks", blocks, "--json"});
  };
  const auto result = bench("sparse");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_THAT(json["forced"]["blocks"].get<std::string>(), HasSubstr("6400 tokens"));
  for (const char* context : {"6400", "7000"}) {
    EXPECT_GT(json["forced"]["blocks_kept"][context].get<double>(), 0);
    EXPECT_LE(json["forced"]["blocks_kept"][context].get<double>(), 1);
  }
  EXPECT_EQ(json["prefill"].size(), 4u);
  const auto dense = bench("dense");
  EXPECT_NE(dense.exit_code, 0);
  EXPECT_THAT(dense.err, HasSubstr("add --prefill sparse"));
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Papers, TheSuiteIsMeasuredOnce) {
  const TemporaryDirectory directory;
  const auto suite = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"papers",
                                      "--model",
                                      FixtureDirectory("llama").string(),
                                      "--device",
                                      "cpu",
                                      "--context",
                                      "96,160",
                                      "--batch",
                                      "2",
                                      "--steps",
                                      "2",
                                      "--output",
                                      directory.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    return RunProgram(words);
  };
  const auto none = suite({"--time-limit", "0"});
  ASSERT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr(" 0 new, 0 kept"));
  EXPECT_THAT(Read(directory.path() / "papers/suite.json"), HasSubstr("throughput"));

  const auto first = suite({});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr(" 0 left"));
  int measured = 0;
  std::string reasons;
  std::filesystem::path latency;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path() / "papers/cells")) {
    const auto json = nlohmann::json::parse(Read(entry.path()));
    if (json.contains("skipped")) {
      reasons += json["skipped"].get<std::string>();
      continue;
    }
    ++measured;
    if (json["cell"]["system"] == "full" && json["cell"]["context"] == 160 &&
        json["cell"]["kind"] == "decode") {
      latency = entry.path();
      EXPECT_GT(json["ms_per_step"].get<double>(), 0);
      EXPECT_GT(json["kv_device_bytes"].get<int64_t>(), 160 * 768);
    }
  }
  EXPECT_GT(measured, 30);
  EXPECT_THAT(reasons, HasSubstr("brings rows to a GPU"));  // why link has no figures
  ASSERT_FALSE(latency.empty());

  // A second run keeps existing cells and retries skipped ones.
  auto json = nlohmann::json::parse(Read(latency));
  json["ms_per_step"] = 123000;
  std::ofstream(latency) << json.dump();
  const auto again = suite({});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr(" 0 new, " + std::to_string(measured) + " kept"));
  EXPECT_THAT(again.err, HasSubstr(std::to_string(measured) + " of "));
  EXPECT_THAT(again.err, HasSubstr("were not possible before"));
  EXPECT_THAT(Read(latency), HasSubstr("123000"));
  // Other settings make a different measurement.
  json["cell"]["settings"] = "policy=streaming";
  std::ofstream(latency) << json.dump();
  EXPECT_THAT(suite({"--experiments", "latency"}).out, HasSubstr(" 1 new"));

  EXPECT_THAT(suite({"--experiments", "figure"}).err, HasSubstr("latency, breakdown"));
  EXPECT_THAT(suite({"--accuracy-model", "/nowhere"}).err, HasSubstr("/nowhere"));
  EXPECT_THAT(
      RunProgram({"papers", "--shape", "llama9", "--output", directory.path().string()}).err,
      HasSubstr("llama3-8b"));
  EXPECT_THAT(suite({"--system", "litecache, no prefetch", "--system", "lightcache"}).err,
              HasSubstr("lightcache"));
  directory.Write("file", "");
  EXPECT_THAT(RunProgram({"papers", "--model", FixtureDirectory("llama").string(), "--device",
                          "cpu", "--output", (directory.path() / "file").string()})
                  .err,
              HasSubstr("file/papers"));
  std::ofstream(directory.path() / "papers/machine.json") << "{\"machine\": \"another\"}";
  EXPECT_THAT(suite({}).err, HasSubstr("another"));
  std::ofstream(latency) << "{";
  EXPECT_THAT(suite({}).err, HasSubstr(latency.filename().string()));
}

TEST(LabBench, PlaysWhatAModelLookedFor) {
  const TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the quick brown fox number " + std::to_string(i * i) + " ";
  directory.Write("text.txt", text);
  const std::string trace = (directory.path() / "a.trace").string();
  const auto record = RunProgram({"record", "--model", SharedModel().path(), "--corpus",
                                  (directory.path() / "text.txt").string(), "--context", "400",
                                  "--steps", "24", "--windows", "1", "--output", trace});
  ASSERT_EQ(record.exit_code, 0) << record.err;
  EXPECT_THAT(record.out, HasSubstr("24 steps at 400 tokens"));
  // The trace must not contain the path of the text.
  EXPECT_THAT(Read(trace), Not(HasSubstr(directory.path().string())));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(SharedModel().path()) /
                                       "litecache-profile.safetensors"));

  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"bench",   "--model", FixtureDirectory("qwen2").string(),
                                      "--only",  "decode",  "--context",
                                      "900",     "--steps", "30",
                                      "--batch", "2",       "--no-resident-first-layer",
                                      "--sink",  "4",       "--recent",
                                      "8",       "--carry", "0",
                                      "--trace", trace};
    words.insert(words.end(), more.begin(), more.end());
    return RunProgram(words);
  };
  const auto all = bench({"--policies", "full,litecache,infinigen,pqcache,retroinfer",
                          "--retroinfer-update", "64", "--json"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  const auto json = nlohmann::json::parse(all.out);
  EXPECT_THAT(json["forced"]["trace"].get<std::string>(), HasSubstr("24 steps at 400 tokens"));
  ASSERT_EQ(json["decode"].size(), 5u);
  // As in the text, unlike random rows: some hits and some misses at every step.
  for (const size_t policy : {3, 4}) {  // caches of blocks and of clusters
    const double hits = json["decode"][policy]["hit_ratio"];
    EXPECT_GT(hits, 0) << json["decode"][policy];
    EXPECT_LE(hits, 1) << json["decode"][policy];
  }
  // The text's queries drift: lower thresholds hit more.
  const auto hits = [&](const char* eta) {
    const auto result = bench({"--policies", "litecache", "--thresholds", "fixed", "--aggregation",
                               "min", "--eta", eta, "--json"});
    return nlohmann::json::parse(result.out)["decode"][0]["hit_ratio"].get<double>();
  };
  EXPECT_EQ(hits("1"), 0);
  EXPECT_EQ(hits("-1"), 1);
  EXPECT_GE(hits("0.5"), hits("0.9"));

  const auto fails = [&](const std::vector<std::string>& more, const std::string& part) {
    const auto result = bench(more);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  fails({"--policies", "full,streaming"}, "--trace");
  fails({"--hit-ratio", "0.5"}, "--hit-ratio");
  std::ofstream(trace) << "LCTRACE1";
  fails({}, "a.trace");
}

TEST(LabBench, ErrorsComeBeforeTheWork) {
  const std::string model = FixtureDirectory("llama").string();
  const auto expect = [&](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> words = {"bench", "--model", model};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = RunProgram(words);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  expect({"--hit-ratio", "0.5"}, "litecache");
  expect({"--hit-ratio", "1.5"}, "--hit-ratio");
}

}  // namespace
}  // namespace litecache::testing
