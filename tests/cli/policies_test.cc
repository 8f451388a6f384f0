// Every KV policy of the program with every command that runs a model, for every family: `serve`
// must answer like `generate`; lossless policies must answer like `full`, and the others must
// report what they left out.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>
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
#include "test_seed.h"

namespace litecache::testing {
namespace {

using Json = nlohmann::json;

class PoliciesTest : public ::testing::TestWithParam<std::string> {
 protected:
  // About 300 tokens, the same in all tests of a family.
  static std::string Text() {
    std::mt19937_64 random = TestRandom(7);
    std::string text;
    while (text.size() < 400) {
      for (int letters = 1 + static_cast<int>(random() % 6); letters > 0; --letters) {
        text += static_cast<char>('a' + random() % 26);
      }
      text += ' ';
    }
    return text;
  }

  // Those that can run the family's model.
  static std::vector<PolicySetting> PoliciesFor(const FixtureModel& model) {
    const auto config = model::ModelConfig::FromModel(model.path());
    std::vector<PolicySetting> policies = PolicySettings();
    std::erase_if(policies, [&](const PolicySetting& policy) {
      return (policy.predicts && !config.uniform()) ||
             (policy.estimates && config.attention_cap != 0);
    });
    return policies;
  }
  const std::vector<PolicySetting>& Policies() const { return policies_; }

  const FixtureModel model_{1024, GetParam()};
  const std::vector<PolicySetting> policies_ = PoliciesFor(model_);
};

// The port of a running server.
uint16_t PortOf(const std::string& log) {
  const std::string sign = "://127.0.0.1:";
  const size_t at = log.find(sign);
  return at == std::string::npos ? uint16_t{0}
                                 : static_cast<uint16_t>(std::stoi(log.substr(at + sign.size())));
}

TEST_P(PoliciesTest, GenerateAndServeSayTheSame) {
  const std::string prompt = Text();
  std::vector<int32_t> full;
  uint64_t full_read = 0;
  for (const PolicySetting& policy : Policies()) {
    SCOPED_TRACE(policy.name);
    // f32: rounding decides no token.
    std::vector<std::string> common = {"--model",  model_.path(), "--dtype",  "f32",
                                       "--memory", "1GiB",        "--device", "cpu"};
    common.insert(common.end(), {"--kv-policy", policy.name});
    common.insert(common.end(), policy.flags.begin(), policy.flags.end());

    std::vector<std::string> generate = {"generate", "--temperature", "0", "-n", "12", "--json"};
    generate.insert(generate.end(), common.begin(), common.end());
    const auto result = RunProgram(generate, {.input = prompt});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json answer = Json::parse(result.out);
    const auto tokens = answer["tokens"].get<std::vector<int32_t>>();
    ASSERT_FALSE(tokens.empty());
    const Json& stats = answer["stats"];
    const Json& kv = stats["kv"];
    EXPECT_EQ(kv["policy"], policy.name);
    const auto read = kv["attention_bytes_read"].get<uint64_t>();
    if (policy.name == "full") {
      full = tokens;
      full_read = read;
      EXPECT_FALSE(kv.contains("moved"));
    } else if (policy.exact) {
      EXPECT_EQ(tokens, full);
      EXPECT_EQ(read, full_read);
      if (tokens.size() > 1) {  // the first one comes from the prompt
        EXPECT_GT(kv["moved"]["stream"]["rows"], 0);
        EXPECT_EQ(kv["rows_recomputed"] > 0, policy.name == "kvpr");
      }
    } else if (tokens.size() > 1 && tokens.size() == full.size()) {
      EXPECT_LT(read, full_read);  // over the same number of steps
    }
    if (!policy.exact && policy.name != "streaming" && tokens.size() > 1) {
      EXPECT_GT(kv["host_bytes"], 0);
      // Some rows of each head were selected, but not all.
      const auto chosen = kv["all_heads"]["rows_selected"].get<uint64_t>();
      EXPECT_GT(chosen, 0u);
      EXPECT_LT(chosen, kv["heads"].get<uint64_t>() * tokens.size() *
                            stats["prompt_tokens"].get<uint64_t>());
    }

    // Where a prompt is kept, it ends a chunk, and the next one reads its rows once more.
    std::vector<std::string> serve = {"serve", "--port",    "0", "--prefix-cache",
                                      "off",   "--threads", "1"};
    serve.insert(serve.end(), common.begin(), common.end());
    Program server(serve, {});
    ASSERT_TRUE(server.WaitForError("serving ")) << server.err();
    const Json request = {{"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}};
    const uint16_t port = PortOf(server.err());
    const Reply reply = Call(port, "POST", "/v1/completions", request.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json choice = Json::parse(reply.body)["choices"][0];
    EXPECT_EQ(choice["text"], answer["text"]);
    // The same number of bytes as this policy reads in `generate`.
    EXPECT_EQ(Json::parse(Call(port, "GET", "/stats").body)["kv"]["bytes_read"], read);
    server.Signal(SIGTERM);
    server.Finish();
  }
}

TEST_P(PoliciesTest, EvalRunsThemAll) {
  const TemporaryDirectory directory;
  const auto text = directory.Write("text.txt", Text() + Text() + Text());
  const std::string out = (directory.path() / "out.jsonl").string();
  std::vector<std::string> words = {
      "eval",    "run", "--suite",         "perplexity", "--model",  model_.path(),
      "--text",  text,  "--lengths",       "320",        "--count",  "1",
      "--dtype", "f32", "--decode-tokens", "12",         "--memory", "1GiB",
      "--json",  out,   "--policies",      "full",       "--device", "cpu"};
  for (const PolicySetting& policy : Policies()) {
    if (policy.name == "full") continue;
    words.insert(words.end(), {"--config", policy.Configuration()});
  }
  const auto result = RunProgram(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(out);
  std::map<std::string, std::vector<double>> losses;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    if (json["type"] == "window")
      losses[json["configuration"]] = json["nll"].get<std::vector<double>>();
  }
  ASSERT_EQ(losses.size(), Policies().size()) << result.out;
  const auto& full = losses.at("full");
  ASSERT_EQ(full.size(), 12u);
  for (const PolicySetting& policy : Policies()) {
    SCOPED_TRACE(policy.name);
    const auto& loss = losses.at(policy.name);
    ASSERT_EQ(loss.size(), full.size());
    double farthest = 0;
    for (size_t i = 0; i < loss.size(); ++i) {
      ASSERT_TRUE(std::isfinite(loss[i]));
      farthest = std::max(farthest, std::abs(loss[i] - full[i]));
    }
    // The file has six digits.
    EXPECT_EQ(farthest < 1e-4, policy.exact) << farthest;
  }
}

TEST_P(PoliciesTest, BenchRunsThemAll) {
  std::vector<std::string> words = {"bench",   "--model",  model_.path(), "--policies", "full",
                                    "--batch", "2",        "--context",   "300",        "--only",
                                    "decode",  "--steps",  "8",           "--json",     "--memory",
                                    "1GiB",    "--device", "cpu"};
  for (const PolicySetting& policy : Policies()) {
    if (policy.name == "full") continue;
    words.insert(words.end(), {"--config", policy.Configuration()});
  }
  const auto result = RunProgram(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json cells = Json::parse(result.out)["decode"];
  ASSERT_EQ(cells.size(), Policies().size());
  const double full = cells[0]["bytes_per_step"];
  for (size_t i = 0; i < cells.size(); ++i) {
    const PolicySetting& policy = Policies()[i];
    SCOPED_TRACE(policy.name);
    EXPECT_EQ(cells[i]["policy"], policy.name);
    EXPECT_GT(cells[i]["ms_per_step"], 0);
    const double rows = cells[i].value("rows_moved_per_step", 0.0);
    EXPECT_EQ(rows > 0, policy.name != "full" && policy.name != "streaming") << rows;
    if (policy.exact) {
      EXPECT_GE(cells[i]["bytes_per_step"], full);
    } else if (policy.name == "streaming") {
      EXPECT_LT(cells[i]["bytes_per_step"], full);
    }
  }
}

std::vector<std::string> FixturesOfFamilies() {
  std::vector<std::string> names;
  for (const model::FamilySpec& family : model::Families()) {
    names.emplace_back(model::Name(family.family));
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, PoliciesTest, ::testing::ValuesIn(FixturesOfFamilies()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace litecache::testing
