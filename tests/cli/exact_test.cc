// --exact: answers of policy litecache that are those of policy full, for every family.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/family_on_device.h"
#include "cli/fixture_model.h"
#include "cli/program.h"
#include "cli/rank_programs.h"
#include "cli/same_answers.h"
#include "server/http_client.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

// Few rows, so that decode steps choose other tokens than full attention now and then.
const Words kExact = {"--kv-policy", "litecache", "--exact", "--kv-budget", "24", "--sink",
                      "4",           "--recent",  "12",      "--carry",     "8"};

class ExactTest : public FamilyOnDevice {};

TEST_P(ExactTest, AnswersAreThoseOfFull) {
  const FixtureModel model(1024, family());
  const std::string prompt = RandomText(300);
  int64_t draft_steps = 0;
  for (const Words& sampling :
       {Words{"--temperature", "0"},
        Words{"--temperature", "0.9", "--seed", "7", "--samples", "3", "--top-p", "0.95"}}) {
    // f32: rounding hardly decides a token.
    const Words common =
        Words{"generate", "--model",  model.path(), "--dtype", "f32", "--json",      "--memory",
              "1GiB",     "--device", device(),     "-n",      "60",  "--ignore-eos"} +
        sampling;
    const auto full = RunProgram(common + Words{"--kv-policy", "full"}, {.input = prompt});
    if (Refused(full)) GTEST_SKIP() << full.err;
    ASSERT_EQ(full.exit_code, 0) << full.err;
    // Drafts whether or not they pay, which depends on the machine.
    const auto exact =
        RunProgram(common + kExact, {.input = prompt, .environment = {"LITECACHE_DRAFT_ALWAYS=1"}});
    if (Refused(exact)) GTEST_SKIP() << exact.err;
    ASSERT_EQ(exact.exit_code, 0) << exact.err;
    std::vector<Json> expected, answers;
    std::istringstream of_full(full.out), of_exact(exact.out);
    for (std::string line; std::getline(of_full, line);) {
      expected.push_back(Json::parse(line)["tokens"]);
    }
    for (std::string line; std::getline(of_exact, line);) {
      const Json answer = Json::parse(line);
      answers.push_back(answer["tokens"]);
      if (answer.contains("stats"))
        draft_steps += answer["stats"]["drafts"]["draft_steps"].get<int64_t>();
    }
    ExpectSameAnswers(answers, expected);
  }
  EXPECT_GT(draft_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ExactTest, FamilyOnDevice::All(), FamilyOnDevice::Name);

TEST(ExactServer, ReportsItsDrafts) {
  const FixtureModel model(1024);
  Program server(Words{"serve", "--port", "0", "--model", model.path(), "--memory", "1GiB",
                       "--device", "cpu", "--threads", "1"} +
                     kExact,
                 {.environment = {"LITECACHE_DRAFT_ALWAYS=1"}});
  ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
  const uint16_t port = PortOf(server.err());
  const Json body = {{"prompt", RandomText(300)},
                     {"max_tokens", 80},
                     {"ignore_eos", true},
                     {"timings_per_token", true}};
  const Json answer = Json::parse(Call(port, "POST", "/v1/completions", body.dump()).body);
  EXPECT_GT(answer["timings"]["draft_n"], 0);
  EXPECT_GE(answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]);
  const Json drafts = Json::parse(Call(port, "GET", "/stats").body)["drafts"];
  EXPECT_EQ(drafts["drafted"], answer["timings"]["draft_n"]);
  EXPECT_EQ(drafts["accepted"].get<int>() + drafts["passes"].get<int>(), 79);
  EXPECT_GT(drafts["draft_steps"], 0);
  EXPECT_THAT(Call(port, "GET", "/metrics").body,
              HasSubstr("litecache_draft_steps_total " + drafts["draft_steps"].dump()));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Finish().exit_code, 0) << server.err();
}

TEST(Exact, WhatCannotBeSaysWhatToUse) {
  const auto error = [](const Words& words) {
    const auto result = RunProgram(
        Words{"generate", "--model", SharedModel().path(), "the cat", "--device", "cpu"} + words);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error({"--kv-policy", "streaming", "--exact"}),
              HasSubstr("use full, kvpr or litecache"));
  EXPECT_THAT(error({"--kv-policy", "full", "--draft", "sparse"}),
              HasSubstr("use policy litecache"));
  EXPECT_THAT(error({"--kv-policy", "litecache", "--exact", "--deterministic"}),
              HasSubstr("--deterministic"));
  EXPECT_THAT(error({"--draft", "sparse,lookup"}), HasSubstr("lookup,sparse"));
}

}  // namespace
}  // namespace litecache::testing
