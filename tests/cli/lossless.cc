#include "cli/lossless.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/join.h"
#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;

// The answers to two prompts; in f32, so that rounding decides no token.
std::vector<Json> Generate(const std::vector<std::string>& options) {
  std::vector<std::string> words = {"generate",
                                    "--model",
                                    SharedModel().path(),
                                    "--dtype",
                                    "f32",
                                    "--temperature",
                                    "0",
                                    "-n",
                                    "30",
                                    "--json",
                                    "--prefill-chunk",
                                    "16",
                                    "--ignore-eos"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "the cat sat on the mat and looked at the door", "in the end"});
  const auto result = RunProgram(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<Json> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace

void ExpectTokensOfFull(const std::vector<std::vector<std::string>>& settings) {
  const auto full = Generate({"--kv-policy", "full"});
  ASSERT_EQ(full.size(), 2u);
  for (const auto& options : settings) {
    SCOPED_TRACE(litecache::Join(options, " "));
    const auto lines = Generate(options);
    ASSERT_EQ(lines.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(lines[i]["tokens"], full[i]["tokens"]);
    const Json& kv = lines[1]["stats"]["kv"];
    EXPECT_EQ(kv["policy"], options[1]);
    if (options[1] == "streaming") {
      EXPECT_EQ(kv["host_capacity_bytes"], 0);
      continue;
    }
    EXPECT_GT(kv["host_bytes"], 0);
    EXPECT_GT(kv["moved"]["spill"]["rows"], 0);
    EXPECT_GT(kv["moved"]["prefill"]["rows"], 0);
    // The number of rows that kvpr recomputes by default depends on the machine.
    if (options[1] == "kvpr" && options.size() == 2) continue;
    EXPECT_EQ(kv["rows_recomputed"] > 0, options[1] == "kvpr");
  }
}

}  // namespace litecache::testing
