// Compares every metric with the values of the Python packages (tools/fixtures).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "eval/jsonl.h"
#include "eval/metrics.h"
#include "io/file.h"
#include "source_directory.h"

namespace litecache::eval {
namespace {

TEST(MetricFixtures, EqualThePythonPackages) {
  // LC_METRIC_FIXTURES: another file from the same script, with more cases.
  const char* other = std::getenv("LC_METRIC_FIXTURES");
  const std::filesystem::path path =
      other != nullptr ? other : SourceDirectory() / "tests/fixtures/eval/metrics.jsonl";
  std::map<std::string, int> cases;
  ForEachJsonLine(io::ReadTextFile(path), path, [&](const JsonLine& line) {
    const auto metric = line.value.at("metric").get<std::string>();
    const double score = Score(metric, line.value.at("prediction").get<std::string>(),
                               line.value.at("references").get<std::vector<std::string>>(),
                               line.value.at("classes").get<std::vector<std::string>>());
    // The same operations in the same order: only the printed decimals may differ.
    EXPECT_DOUBLE_EQ(score, line.value.at("score").get<double>()) << line.where << " " << metric;
    ++cases[metric];
  });
  for (const std::string_view name : MetricNames()) EXPECT_GE(cases[std::string(name)], 20) << name;
}

}  // namespace
}  // namespace litecache::eval
