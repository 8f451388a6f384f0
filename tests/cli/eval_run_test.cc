// litecache eval run and eval report.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/fixture_model.h"
#include "cli/program.h"
#include "test_seed.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class EvalRunTest : public ::testing::Test {
 protected:
  EvalRunTest() : random_(TestRandom(21)), out_((directory_.path() / "out.jsonl").string()) {}

  std::string Words(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      for (int letters = 1 + static_cast<int>(random_() % 6); letters > 0; --letters) {
        text += static_cast<char>('a' + random_() % 26);
      }
      text += random_() % 12 == 0 ? "\n" : " ";
    }
    return text;
  }

  // A file of samples with prompts of up to `words` words.
  std::string WriteSamples(int count, int words, int new_tokens) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      samples_.push_back({{"task", i % 2 == 0 ? "even" : "odd"},
                          {"index", i},
                          {"input", Words(1 + static_cast<int>(random_() % words)) + "answer:"},
                          {"answer_prefix", "answer:"},
                          {"outputs", {"a", "e"}},
                          {"max_new_tokens", new_tokens},
                          {"depths", {0.5}}});
      text += samples_.back().dump() + "\n";
    }
    return directory_.Write("samples.jsonl", text).string();
  }

  std::vector<std::string> Command(const std::string& suite, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"eval", "run", "--suite", suite, "--model", SharedModel().path(), "--json", out_});
    return more;
  }

  std::vector<Json> Lines(const std::string& type, const std::string& path = "") const {
    std::ifstream file(path.empty() ? out_ : path);
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) {
      const auto json = Json::parse(line);
      if (json["type"] == type) lines.push_back(json);
    }
    return lines;
  }

  // One per (configuration, sample), even after an interruption.
  std::map<std::string, std::string> Predictions(const std::string& path = "") const {
    std::map<std::string, std::string> predictions;
    for (const auto& line : Lines("prediction", path)) {
      const std::string name =
          line["configuration"].get<std::string>() + " " + line["id"].get<std::string>();
      EXPECT_TRUE(predictions.emplace(name, line["prediction"]).second) << name;
    }
    return predictions;
  }

  void ExpectError(const std::vector<std::string>& command, int code,
                   const std::vector<std::string>& parts) {
    const auto result = RunProgram(command);
    EXPECT_EQ(result.exit_code, code) << result.err;
    for (const auto& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::string out_;
  std::vector<Json> samples_;
};

// Batched or alone, with this command or another: the same text.
TEST_F(EvalRunTest, PredictionsAreThoseOfGenerate) {
  const std::string suite = WriteSamples(6, 80, 12);
  const auto result = RunProgram(Command(suite, {"--policies", "full", "--dtype", "f32"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto predictions = Predictions();
  ASSERT_EQ(predictions.size(), samples_.size());
  for (const auto& sample : samples_) {
    const auto prompt = directory_.Write("prompt.txt", sample["input"].get<std::string>());
    const auto alone =
        RunProgram({"generate", "--model", SharedModel().path(), "--prompt-file", prompt.string(),
                    "--temperature", "0", "-n", "12", "--json", "--dtype", "f32"});
    const std::string name =
        "full " + sample["task"].get<std::string>() + "/" + std::to_string(int(sample["index"]));
    EXPECT_EQ(predictions.at(name), Json::parse(alone.out)["text"].get<std::string>()) << name;
  }
  for (const auto& line : Lines("prediction")) {
    const std::string text = line["prediction"];
    // The metric ignores case.
    const auto holds = [&](const char* letter) {
      return text.find_first_of(letter) != std::string::npos;
    };
    const double expected = (holds("aA") + holds("eE")) / 2.0;
    EXPECT_EQ(line["score"].get<double>(), expected) << text;
    EXPECT_EQ(line["depths"], Json({0.5}));
    EXPECT_LE(line["generated_tokens"], 12);
  }
  for (const char* part : {"even", "odd", "average", "full"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST_F(EvalRunTest, ChatTemplateAndAnswerPrefix) {
  const std::string suite = WriteSamples(1, 20, 5);
  ASSERT_EQ(RunProgram(Command(suite, {"--policies", "full", "--chat"})).exit_code, 0);
  std::string input = samples_[0]["input"];
  input.resize(input.size() - 7);
  // The fixture's template, written out.
  const auto ids =
      RunProgram({"tokenize", "--model", SharedModel().path(), "--no-special", "--json"},
                 {.input = "<s><|user|>" + input + "</s><|assistant|>"});
  const auto prefix =
      RunProgram({"tokenize", "--model", SharedModel().path(), "--no-special", "--json"},
                 {.input = "answer:"});
  EXPECT_EQ(Lines("prediction").at(0)["prompt_tokens"].get<size_t>(),
            Json::parse(ids.out)["ids"].size() + Json::parse(prefix.out)["ids"].size());
}

TEST_F(EvalRunTest, AddsWhatIsMissingAndNothingElse) {
  const std::string suite = WriteSamples(8, 30, 6);
  // f32: rounding decides no token.
  ASSERT_EQ(RunProgram(Command(suite, {"--policies", "full", "--dtype", "f32", "--count", "2"}))
                .exit_code,
            0);
  EXPECT_EQ(Predictions().size(), 4u);
  ASSERT_EQ(RunProgram(Command(suite, {"--policies", "full", "--dtype", "f32"})).exit_code, 0);
  const auto all = Predictions();
  EXPECT_EQ(all.size(), 8u);
  const auto again = RunProgram(Command(suite, {"--policies", "full", "--dtype", "f32"}));
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(Predictions(), all);
  EXPECT_THAT(again.out, HasSubstr("average"));
  // Ablations can be added to the same file.
  ASSERT_EQ(RunProgram(Command(suite, {"--policies", "full", "--dtype", "f32", "--config",
                                       "everything:budget=100%,retriever=exact", "--config",
                                       "little:budget=8,retriever=exact,sink=1,recent=4"}))
                .exit_code,
            0);
  EXPECT_EQ(Predictions().size(), 24u);
  for (const auto& line : Lines("prediction")) {
    if (line["configuration"] != "everything") continue;
    EXPECT_EQ(line["prediction"], all.at("full " + line["id"].get<std::string>()));
  }
}

TEST_F(EvalRunTest, GoesOnAfterBeingKilled) {
  const std::string suite = WriteSamples(60, 120, 40);
  const auto command = Command(suite, {"--policies", "full", "--dtype", "f32"});
  const std::string whole = (directory_.path() / "whole.jsonl").string();
  auto undisturbed = command;
  undisturbed[7] = whole;
  ASSERT_EQ(RunProgram(undisturbed).exit_code, 0);
  for (const int signal : {SIGKILL, SIGINT}) {
    std::filesystem::remove(out_);
    {
      Program program(command, {});
      const auto enough = [&] {
        return std::filesystem::exists(out_) && std::filesystem::file_size(out_) > 6000;
      };
      for (int i = 0; i < 3000 && !enough(); ++i) usleep(10'000);
      ASSERT_TRUE(enough()) << program.err();
      program.Signal(signal);
      const auto result = program.Finish();
      if (signal == SIGINT && result.exit_code != 0) {
        EXPECT_EQ(result.exit_code, 130);
        EXPECT_THAT(result.err, HasSubstr("goes on where it stopped"));
      }
    }
    ASSERT_EQ(RunProgram(command).exit_code, 0);
    EXPECT_EQ(Predictions(), Predictions(whole));
  }
}

TEST_F(EvalRunTest, NoticesWhatHasChanged) {
  const std::string suite = WriteSamples(2, 20, 4);
  const auto command = [&](const std::string& config) {
    return Command(suite, {"--policies", "full", "--config", config});
  };
  ASSERT_EQ(RunProgram(command("mine:eta=0.5,budget=50%")).exit_code, 0);
  ExpectError(command("mine:eta=0.7,budget=50%"), 2, {"mine", "eta", "0.5", "0.7", "--restart"});
  auto restart = command("mine:eta=0.7,budget=50%");
  restart.push_back("--restart");
  EXPECT_EQ(RunProgram(restart).exit_code, 0);
  EXPECT_EQ(Predictions().size(), 4u);
  // A different sample with the same name.
  samples_[1]["outputs"] = {"other"};
  directory_.Write("samples.jsonl", samples_[0].dump() + "\n" + samples_[1].dump() + "\n");
  ExpectError(command("mine:eta=0.7,budget=50%"), 2, {"another sample"});
}

TEST_F(EvalRunTest, PerplexityIsThatOfTheLogits) {
  const std::string text = Words(900);
  const auto file = directory_.Write("text.txt", text);
  const auto result = RunProgram(Command(
      "perplexity",
      {"--text", file.string(), "--lengths", "150,301", "--decode-tokens", "33", "--count", "3",
       "--dtype", "f32", "--policies", "full", "--config", "all:budget=100%,retriever=exact",
       "--config", "few:budget=6,retriever=exact,sink=1,recent=3,resident_first_layer=off"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto encoded = RunProgram(
      {"tokenize", "--model", SharedModel().path(), "--no-special", "--json"}, {.input = text});
  const auto ids = Json::parse(encoded.out)["ids"].get<std::vector<int32_t>>();
  const auto windows = Lines("window");
  ASSERT_EQ(windows.size(), 18u);
  std::set<int64_t> ends;
  double little = 0;
  for (const auto& window : windows) {
    const auto length = window["length"].get<int64_t>();
    const auto end = window["end"].get<int64_t>();
    ends.insert(end);
    if (window["configuration"] == "few") {
      for (const double kl : window["kl"]) little += kl;
    }
    if (window["configuration"] == "all") {
      // Rounding only; f32 logits of size ~10 are off by about 1e-5, KL by the square of that.
      for (const double kl : window["kl"]) EXPECT_LT(kl, 1e-7);
    }
    if (window["configuration"] != "full") continue;
    EXPECT_TRUE(window["kl"].empty());
    std::vector<int32_t> tokens = {1};
    tokens.insert(tokens.end(), ids.begin() + end - (length - 1), ids.begin() + end);
    const auto tokens_file = directory_.Write("tokens.txt", Join(tokens));
    const auto logits = Json::parse(
        RunProgram({"logits", "--model", SharedModel().path(), "--tokens-file",
                    tokens_file.string(), "--positions", "all", "--json", "--dtype", "f32"})
            .out)["logits"];
    const auto nll = window["nll"].get<std::vector<double>>();
    ASSERT_EQ(nll.size(), 33u);
    double prompt = 0;
    for (int64_t i = 0; i + 1 < length; ++i) {
      double sum = 0;
      for (const double logit : logits[static_cast<size_t>(i)]) sum += std::exp(logit);
      const auto next = static_cast<size_t>(tokens[static_cast<size_t>(i + 1)]);
      const double expected = std::log(sum) - logits[static_cast<size_t>(i)][next].get<double>();
      const int64_t scored = i - (length - 34);
      if (scored >= 0) {
        EXPECT_NEAR(nll[static_cast<size_t>(scored)], expected, 1e-4);
      } else {
        prompt += expected;
      }
    }
    EXPECT_EQ(window["prompt"].size(), 1u);
    EXPECT_EQ(window["prompt"][0][1].get<int64_t>(), length - 34);
    EXPECT_NEAR(window["prompt"][0][2].get<double>(), prompt, 1e-4 * static_cast<double>(length));
  }
  EXPECT_EQ(ends.size(), 3u);  // windows of one index end at the same token, whatever their length
  EXPECT_GT(little, 0);
  EXPECT_THAT(result.out, HasSubstr("KL mean"));
}

TEST_F(EvalRunTest, RulerSamplesAndReports) {
  const auto result = RunProgram(Command(
      "ruler", {"--tasks", "niah_single_1", "--lengths", "1000", "--count", "4", "--policies",
                "full,litecache", "--retrievers", "exact,quest", "--budgets", "5%"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Predictions().size(), 12u);
  for (const auto& line : Lines("prediction")) {
    EXPECT_LE(line["prompt_tokens"].get<int>(), 1000);
    EXPECT_GT(line["prompt_tokens"].get<int>(), 600);
  }
  const std::string page = (directory_.path() / "r.html").string();
  const auto report = RunProgram({"eval", "report", out_, "--html", page});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  for (const char* part : {"quest-5%", "| niah_single_1 |", "hit ratio", "### Configurations"}) {
    EXPECT_THAT(report.out, HasSubstr(part));
  }
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(html, HasSubstr("<svg"));
  // Tasks that are impossible at a length are left out of "all", and rejected by name.
  ExpectError(Command("ruler", {"--tasks", "cwe", "--lengths", "500"}), 2, {"cwe", "500"});
}

TEST_F(EvalRunTest, BadInputIsRefusedBeforeAnythingRuns) {
  const std::string suite = WriteSamples(2, 20, 4);
  const auto refused = [&](const std::string& name, const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    ExpectError(Command(name, more), code, parts);
    EXPECT_THAT(Lines("prediction"), ::testing::IsEmpty());
  };
  refused("ruler", {"--lengths", "512,4k"}, 2, {"--lengths", "4096", "1024"});
  refused("perplexity", {"--lengths", "1k", "--text", "/nowhere/t"}, 1, {"/nowhere/t"});
  refused("perplexity", {"--lengths", "100"}, 2, {"--decode-tokens", "512"});
  refused("perplexity", {"--lengths", "1k", "--text", directory_.Write("s.txt", "short").string()},
          2, {"do not fit", "1024"});
  refused("nonsense", {}, 2, {"nonsense", "longbench"});
  refused("longbench", {}, 2, {"--data"});
  refused(suite, {"--lengths", "4k"}, 2, {"--lengths"});
  refused(suite, {"--tasks", "third"}, 2, {"third"});
  refused(suite, {"--policies", "half"}, 2, {"half"});
  refused(suite, {"--budgets", "0%"}, 2, {"0%"});
  refused(suite, {"--retrievers", "oracle"}, 2, {"oracle"});
  refused(suite, {"--config", "x:what=1"}, 2, {"what", "sink_tokens"});
  const auto bad = [&](const std::string& line) {
    return directory_.Write("bad.jsonl", samples_[0].dump() + "\n" + line + "\n").string();
  };
  refused(bad("{"), {}, 1, {"bad.jsonl", "2"});
  auto json = samples_[1];
  json.erase("outputs");
  refused(bad(json.dump()), {}, 1, {"bad.jsonl", "2", "outputs"});
  json = samples_[1];
  json["metric"] = "vibes";
  refused(bad(json.dump()), {}, 1, {"bad.jsonl", "2", "metric", "vibes"});
  json = samples_[1];
  json["input"] = Words(2000);
  refused(bad(json.dump()), {}, 2, {"bad.jsonl", "odd/1", "1024"});
  ExpectError({"eval", "report"}, 2, {"name the files"});
  ExpectError({"eval", "report", "/nowhere/r.jsonl"}, 1, {"/nowhere/r.jsonl"});
  ExpectError({"eval", "report", directory_.Write("r.jsonl", "[]\n").string()}, 1,
              {"r.jsonl: line 1"});
}

}  // namespace
}  // namespace litecache::testing
