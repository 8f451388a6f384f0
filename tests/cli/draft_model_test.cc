// --draft DIR: a second model drafts, and the answers are those without it, for every family.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cli/family_on_device.h"
#include "cli/fixture_model.h"
#include "cli/program.h"
#include "cli/rank_programs.h"
#include "cli/same_answers.h"
#include "server/http_client.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Drafts whether or not they pay, which depends on the machine.
const Words kAlways = {"LITECACHE_DRAFT_ALWAYS=1"};

struct Answers {
  std::vector<Json> tokens;
  int64_t drafted = 0, accepted = 0;
};

ProgramResult GenerateOn(const Words& words, const std::string& prompt, const std::string& device) {
  return RunProgram(
      Words{"generate", "--json", "--memory", "1GiB", "--device", device, "--ignore-eos"} + words,
      {.input = prompt, .environment = kAlways});
}

Answers AnswersOf(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Answers answers;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const Json answer = Json::parse(line);
    answers.tokens.push_back(answer["tokens"]);
    if (!answer.contains("stats") || !answer["stats"].contains("drafts")) continue;
    answers.drafted += answer["stats"]["drafts"]["drafted"].get<int64_t>();
    answers.accepted += answer["stats"]["drafts"]["accepted"].get<int64_t>();
  }
  return answers;
}

Answers Generate(const Words& words, const std::string& prompt) {
  return AnswersOf(GenerateOn(words, prompt, "cpu"));
}

class DraftModelTest : public FamilyOnDevice {};

TEST_P(DraftModelTest, AnswersAreThoseWithout) {
  const FixtureModel model(1024, family()), other(1024, "qwen3");
  auto random = TestRandom(30);
  const std::string prompt = RandomText(300, random());
  for (const Words& sampling :
       {Words{"--temperature", "0"},
        Words{"--temperature", "0.9", "--seed", "7", "--samples", "3", "--top-p", "0.95"}}) {
    // f32: rounding hardly decides a token.
    const Words common = Words{"--model", model.path(), "--dtype", "f32", "-n", "50"} + sampling;
    const auto run = [&](const Words& draft) {
      return GenerateOn(common + draft, prompt, device());
    };
    const ProgramResult plain = run({}), drafted = run({"--draft", other.path()});
    if (Refused(plain)) GTEST_SKIP() << plain.err;
    if (Refused(drafted)) GTEST_SKIP() << drafted.err;
    const Answers without = AnswersOf(plain);
    ASSERT_FALSE(without.tokens.empty());
    const Answers by_other = AnswersOf(drafted);
    ExpectSameAnswers(by_other.tokens, without.tokens);
    EXPECT_GT(by_other.drafted, 0);
    const Answers by_itself = AnswersOf(run({"--draft", "lookup," + model.path()}));
    ExpectSameAnswers(by_itself.tokens, without.tokens);
    const Answers right = AnswersOf(run({"--draft", model.path()}));
    ExpectSameAnswers(right.tokens, without.tokens);
    EXPECT_GE(static_cast<double>(right.accepted), 0.9 * static_cast<double>(right.drafted));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DraftModelTest, FamilyOnDevice::All(), FamilyOnDevice::Name);

TEST(DraftModel, EveryPolicyCanUseIt) {
  const FixtureModel model(1024), other(512, "qwen3");
  auto random = TestRandom(32);
  const std::string prompt =
      RandomText(700, random());  // the answer goes beyond the draft model's context
  for (const Words& policy : {Words{"full"}, Words{"streaming", "--recent", "40"}, Words{"kvpr"},
                              Words{"litecache", "--exact", "--kv-budget", "24", "--sink", "4",
                                    "--recent", "12", "--carry", "8"}}) {
    const Words common =
        Words{"--model", model.path(), "--dtype", "f32", "-n", "60", "--kv-policy"} + policy;
    const Answers expected =
        policy[0] == "litecache"
            ? Generate({"--model", model.path(), "--dtype", "f32", "-n", "60"}, prompt)
            : Generate(common, prompt);
    EXPECT_EQ(Generate(common + Words{"--draft", other.path()}, prompt).tokens, expected.tokens);
    EXPECT_EQ(Generate(common + Words{"--draft", "lookup," + model.path()}, prompt).tokens,
              expected.tokens);
  }
}

// Requests of all kinds at once, some of them cancelled: the same answers as without drafts.
TEST(DraftModelServer, DraftsForRequestsAtOnceAndReportsIt) {
  auto random = TestRandom(31);
  const FixtureModel model(4096), other(4096, "qwen3");
  const auto serve = [&](const Words& draft) {
    return std::make_unique<Program>(
        Words{"serve", "--port", "0", "--model", model.path(), "--memory", "1GiB", "--device",
              "cpu", "--threads", "2", "--dtype", "f32"} +
            draft,
        ProgramOptions{.environment = kAlways});
  };
  const auto plain = serve({}), drafting = serve({"--draft", "lookup," + other.path()});
  ASSERT_TRUE(plain->WaitForError("serving ")) << plain->err();
  ASSERT_TRUE(drafting->WaitForError("serving ")) << drafting->err();
  const auto ask = [](const Program& server, const Json& body) {
    return Call(PortOf(server.err()), "POST", "/v1/completions", body.dump()).body;
  };
  std::vector<Json> bodies;
  std::vector<std::future<std::string>> drafted;
  const std::string beginning = RandomText(400, random());
  for (int i = 0; i < 12; ++i) {
    Json body = {
        {"prompt", (random() % 2 == 0 ? beginning : "") + RandomText(1 + random() % 900, random())},
        {"max_tokens", 1 + random() % 80},
        {"seed", random() % 1000},
        {"temperature", random() % 2 == 0 ? 0.0 : 0.8},
        {"n", 1 + random() % 3}};
    if (random() % 3 == 0) body["response_format"] = {{"type", "json_object"}};
    if (random() % 3 == 0) body["stop"] = {"e", "th"};
    if (random() % 3 == 0) body["logprobs"] = 2;
    bodies.push_back(body);
    drafted.push_back(std::async(std::launch::async, [&, body] { return ask(*drafting, body); }));
  }
  // Batches are summed in another order than single requests. With and without drafts that decides
  // a draw in one or two runs of a hundred (same_answers.h).
  int different = 0;
  for (size_t i = 0; i < bodies.size(); ++i) {
    const Json with = Json::parse(drafted[i].get()), without = Json::parse(ask(*plain, bodies[i]));
    ASSERT_TRUE(with.contains("choices")) << with;
    for (size_t c = 0; c < without["choices"].size(); ++c) {
      if (with["choices"][c]["text"] != without["choices"][c]["text"]) {
        ++different;
        EXPECT_GT(bodies[i]["temperature"], 0) << with << "\n" << without;
        EXPECT_LE(different, 1) << with << "\n" << without << "\n" << bodies[i];
        continue;
      }
      EXPECT_EQ(with["choices"][c]["finish_reason"], without["choices"][c]["finish_reason"]);
    }
  }
  const uint16_t port = PortOf(drafting->err());
  const Json before = Json::parse(Call(port, "GET", "/stats").body)["drafts"];
  const Json answer = Json::parse(ask(*drafting, {{"prompt", RandomText(300)},
                                                  {"max_tokens", 80},
                                                  {"ignore_eos", true},
                                                  {"timings_per_token", true}}));
  EXPECT_GT(answer["timings"]["draft_n"], 0);
  EXPECT_GE(answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]);
  const Json drafts = Json::parse(Call(port, "GET", "/stats").body)["drafts"];
  EXPECT_EQ(drafts["drafted"].get<int>() - before["drafted"].get<int>(),
            answer["timings"]["draft_n"]);
  EXPECT_GT(drafts["draft_steps"], before["draft_steps"]);
  EXPECT_THAT(Call(port, "GET", "/metrics").body,
              HasSubstr("litecache_draft_steps_total " + drafts["draft_steps"].dump()));
  for (Program* server : {plain.get(), drafting.get()}) {
    server->Signal(SIGTERM);
    EXPECT_EQ(server->Finish().exit_code, 0) << server->err();
  }
}

TEST(DraftModel, WhatCannotDraftSaysWhy) {
  const auto error = [](const Words& words) {
    const auto result = RunProgram(
        Words{"generate", "--model", SharedModel().path(), "the cat", "--device", "cpu"} + words);
    EXPECT_NE(result.exit_code, 0) << ::testing::PrintToString(words);
    return result.err;
  };
  EXPECT_THAT(error({"--draft", "/does/not/exist"}),
              AllOf(HasSubstr("/does/not/exist"), HasSubstr("neither off, lookup nor sparse")));
  EXPECT_THAT(error({"--draft", "lokup"}), HasSubstr("neither off, lookup nor sparse"));
  EXPECT_THAT(error({"--draft", "sparse," + SharedModel().path()}), HasSubstr("lookup,DIR"));
  EXPECT_THAT(error({"--draft", "lookup,"}), HasSubstr("lookup,DIR"));
  EXPECT_THAT(error({"--draft", SharedModel().path(), "--tensor-parallel", "2"}),
              HasSubstr("leave out --tensor-parallel 2"));
  EXPECT_THAT(error({"--draft", SharedModel().path(), "--deterministic"}),
              HasSubstr("--deterministic"));
  EXPECT_THAT(error({"--draft", SharedModel().path(), "--memory", "1MiB"}),
              HasSubstr("raise --memory"));

  TemporaryDirectory broken;
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(SharedModel().directory().path() / file, broken.path() / file);
  }
  broken.Write("model.safetensors", "no safetensors");
  EXPECT_THAT(error({"--draft", broken.path().string()}), HasSubstr("model.safetensors"));

  Json tokens = Json::parse(FixtureTokenizer());
  std::string at;
  for (auto& [text, id] : tokens["model"]["vocab"].items()) {
    if (id == 40) at = text;
  }
  tokens["model"]["vocab"].erase(at);
  tokens["model"]["vocab"]["unheard-of"] = 40;
  broken.Write("tokenizer.json", tokens.dump());
  EXPECT_THAT(
      error({"--draft", broken.path().string()}),
      AllOf(HasSubstr("token 40 is 'unheard-of' in the draft model and '" + at + "' in the model"),
            HasSubstr("the same tokenizer")));
  std::filesystem::remove(broken.path() / "tokenizer.json");
  EXPECT_THAT(error({"--draft", broken.path().string()}), HasSubstr("has no tokenizer"));
}

}  // namespace
}  // namespace litecache::testing
