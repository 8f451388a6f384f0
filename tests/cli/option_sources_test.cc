// Options from the environment and from a file, and what shells are told.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class OptionSourcesTest : public ::testing::Test {
 protected:
  std::string File(const std::string& text) { return directory_.Write("o.toml", text).string(); }

  // The policy and the context of `inspect`'s plan.
  static std::string Plan(std::vector<std::string> words, std::vector<std::string> environment) {
    words.insert(words.begin(), {"inspect", "--json"});
    const auto result = RunProgram(words, {.environment = std::move(environment)});
    if (result.exit_code != 0) return result.err;
    const auto memory = nlohmann::json::parse(result.out)["memory"];
    return memory["kv"]["policy"].get<std::string>() + " " + memory["largest_context"].dump();
  }

  TemporaryDirectory directory_;
  std::string model_ = SharedModel().path();
};

TEST_F(OptionSourcesTest, TheCommandLineWinsOverTheEnvironmentAndThatOverTheFile) {
  const std::string file =
      File("# all of these\nmodel = \"" + model_ +
           "\"\nkv_policy = \"streaming\"  # of --kv-policy\nmax-context = 500\n[inspect]\n"
           "max-context = 400\n[serve]\nmax-context = 300\nport = 1\n");
  EXPECT_EQ(Plan({"--options", file}, {}), "streaming 400");
  EXPECT_EQ(Plan({}, {"LITECACHE_OPTIONS=" + file}), "streaming 400");
  EXPECT_EQ(Plan({"--options", file}, {"LITECACHE_KV_POLICY=full"}), "full 400");
  EXPECT_EQ(Plan({"--options", file, "--kv-policy", "kvpr"}, {"LITECACHE_KV_POLICY=full"}),
            "kvpr 400");
  EXPECT_EQ(Plan({"-c", "200"}, {"LITECACHE_MODEL=" + model_, "LITECACHE_MAX_CONTEXT=100"}),
            "full 200");
  EXPECT_EQ(Plan({}, {"LITECACHE_MODEL=" + model_, "LITECACHE_MAX_CONTEXT="}), "full 1024");
}

TEST_F(OptionSourcesTest, FlagsListsAndText) {
  const std::string file = File(
      "chat = true\nquiet = on\nstop = [\"# \\\"a\\\"\", 'b]', ]\nsystem = 'the, \\cat'\n"
      "kv-policy = litecache\nlog-level = error\ndelta = false\nignore-eos = false\n");
  const auto with =
      RunProgram({"generate", "--model", model_, "-n", "5", "the", "--options", file});
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(with.err, "");
  EXPECT_EQ(with.out, RunProgram({"generate", "--model", model_, "-n", "5", "the", "--chat", "-q",
                                  "--system", "the, \\cat", "--stop", "# \"a\"", "--stop", "b]",
                                  "--kv-policy", "litecache", "--no-delta"})
                          .out);
  EXPECT_EQ(RunProgram({"generate", "--model", model_, "-n", "5", "the"},
                       {.environment = {"LITECACHE_QUIET=1"}})
                .err,
            "");
}

TEST_F(OptionSourcesTest, ErrorsSayWhereTheValueIs) {
  const auto error = [&](const std::string& text, std::vector<std::string> environment = {}) {
    const auto result = RunProgram({"generate", "--model", model_, "x", "--options", File(text)},
                                   {.environment = std::move(environment)});
    EXPECT_NE(result.exit_code, 0) << text;
    return result.err;
  };
  EXPECT_THAT(error("threads = many"), HasSubstr("o.toml)"));
  EXPECT_THAT(error("max-context = 1m"), HasSubstr("--max-context = 1048576"));
  EXPECT_THAT(error("max-context = 1m"), HasSubstr("o.toml)"));
  EXPECT_THAT(error("", {"LITECACHE_THREADS=x"}), HasSubstr("(from LITECACHE_THREADS)"));
  EXPECT_THAT(error("", {"LITECACHE_IGNORE_EOS=perhaps"}), HasSubstr("neither on nor off"));
  EXPECT_THAT(error("\nmax-contxt = 1"), HasSubstr("o.toml:2: 'max-contxt' is not an option of any "
                                                   "command (did you mean 'max-context'?)"));
  EXPECT_THAT(error("[server]\nport = 1"), HasSubstr("'server' is not a command"));
  for (const std::string text :
       {"x", "= 1", "x =", "x = \"a", "x = [1", "x = \"\\q\"", "x = 1 2"}) {
    EXPECT_THAT(error(text), HasSubstr("o.toml:1: "));
  }
}

TEST(Shells, CompleteCommandsOptionsAndValues) {
  const auto complete = [](std::vector<std::string> words) {
    words.insert(words.begin(), "--complete");
    return RunProgram(words).out;
  };
  EXPECT_THAT(complete({""}), HasSubstr("generate\tContinue one prompt"));
  EXPECT_THAT(complete({"eval", ""}), HasSubstr("report\t"));
  EXPECT_EQ(complete({"completion", "f"}), "fish\n");
  EXPECT_THAT(complete({"serve", "--por"}), StartsWith("--port\tPort to listen on"));
  EXPECT_THAT(complete({"eval", "run", "--sui"}), StartsWith("--suite\t"));
  EXPECT_EQ(complete({"generate", "--kv-policy", "l"}), "litecache\n");
  EXPECT_EQ(complete({"generate", "--model", "x"}), "");  // a file
  EXPECT_EQ(complete({"generate", "x"}), "");
  EXPECT_EQ(complete({"nothing", "x"}), "");
  EXPECT_EQ(complete({}), "");
}

TEST(Shells, HaveScriptsAndAManualPage) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = RunProgram({"completion", shell});
    EXPECT_EQ(script.exit_code, 0);
    EXPECT_THAT(script.out, HasSubstr("litecache --complete "));
    EXPECT_THAT(script.out, Not(HasSubstr("PROGRAM")));
  }
  EXPECT_EQ(RunProgram({"completion", "tcsh"}).exit_code, 2);
  EXPECT_EQ(RunProgram({"completion"}).exit_code, 2);
  const auto page = RunProgram({"man"});
  EXPECT_THAT(page.out, StartsWith(".TH LITECACHE 1"));
  EXPECT_THAT(page.out, HasSubstr("\\-\\-kv\\-policy NAME"));
  EXPECT_THAT(page.out, HasSubstr(".SS Options of eval run"));
}

TEST(Shells, AGroupOfCommandsHasHelp) {
  const auto help = RunProgram({"eval", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("litecache eval COMMAND"));
  EXPECT_THAT(help.out, HasSubstr("eval report"));
  EXPECT_THAT(help.out, Not(HasSubstr("Continue one prompt")));
  EXPECT_EQ(RunProgram({"help", "eval"}).out, help.out);
  EXPECT_EQ(RunProgram({"eval", "-h"}).out, help.out);
}

}  // namespace
}  // namespace litecache::testing
