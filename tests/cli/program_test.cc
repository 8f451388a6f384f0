// Behaviour of the program as a whole: help, versions, usage errors, broken output.
#include "cli/program.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/fixture_model.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kCommands[] = {"generate", "chat",    "tokenize", "detokenize",
                                 "logits",   "inspect", "bench",    "eval generate"};

TEST(Program, HelpListsEveryCommand) {
  const auto help = RunProgram({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* command : kCommands) EXPECT_THAT(help.out, HasSubstr(command));
  EXPECT_EQ(RunProgram({"help"}).out, help.out);
  EXPECT_EQ(RunProgram({"-h"}).out, help.out);
}

TEST(Program, EveryCommandHasHelp) {
  for (const std::string command : kCommands) {
    std::vector<std::string> words;
    const size_t space = command.find(' ');
    words.push_back(command.substr(0, space));
    if (space != std::string::npos) words.push_back(command.substr(space + 1));
    words.push_back("--help");
    const auto help = RunProgram(words);
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: litecache " + command));
    EXPECT_THAT(help.out, HasSubstr("--help-all"));
    words.back() = "--help-all";
    const auto all = RunProgram(words);
    EXPECT_EQ(all.exit_code, 0) << command;
    EXPECT_THAT(all.out, HasSubstr("Usage: litecache " + command));
    EXPECT_THAT(all.out, HasSubstr("--log-level"));
  }
  EXPECT_EQ(RunProgram({"help", "generate"}).out, RunProgram({"generate", "--help"}).out);
}

TEST(Program, Version) {
  const auto version = RunProgram({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, StartsWith("litecache "));
  EXPECT_THAT(version.out, HasSubstr("\nCUDA: "));
}

TEST(Program, WrongUsageSaysWhatWasMeant) {
  const auto expect = [](const std::vector<std::string>& words, const std::string& part) {
    const auto result = RunProgram(words);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("error: "));
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect({}, "no command");
  expect({"genrate"}, "Did you mean 'generate'?");
  expect({"eval", "genrate"}, "Did you mean 'eval generate'?");
  expect({"eval"}, "eval generate");
  expect({"--threads", "2", "generate"}, "options follow the command");
  expect({"generate", "--modle", "x"}, "Did you mean '--model'?");
  expect({"generate", "--modle=x"}, "Did you mean '--model'?");
  expect({"generate"}, "--model");
  expect({"generate", "--model"}, "--model");
  expect({"generate", "--model", "x", "--threads", "-1", "p"}, "--threads");
  expect({"generate", "--model", "x", "--threads", "two", "p"}, "--threads");
  expect({"generate", "--model", "x", "--memory", "lots", "p"}, "lots");
  expect({"generate", "--model", "x", "--max-context", "1.5", "p"}, "1.5");
  expect({"generate", "--model", "x", "--dtype", "int4", "p"}, "int4");
  expect({"generate", "--model", "x", "--kv-policy", "most", "p"}, "most");
  expect({"generate", "--model", "x", "--kv-policy", "infinigen", "p"}, "litecache-lab");
  expect({"generate", "--model", "x", "--log-level", "loud", "p"}, "loud");
  expect({"logits", "--model", "x", "--tokens-file", "/dev/null", "word"}, "'word'");
}

TEST(Program, AMissingModelSaysWhereItLooked) {
  const auto result = RunProgram({"generate", "--model", "/nowhere/model", "hello"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, StartsWith("error: "));
  EXPECT_THAT(result.err, HasSubstr("/nowhere/model"));
}

TEST(Program, TheEnvironmentNamesModelAndLevel) {
  const auto result =
      RunProgram({"tokenize", "the"}, {.environment = {"LITECACHE_MODEL=" + SharedModel().path()}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "1 173\n");
  EXPECT_EQ(RunProgram({"tokenize", "--model", SharedModel().path(), "the"},
                       {.environment = {"LITECACHE_LOG_LEVEL=loud"}})
                .exit_code,
            2);
}

TEST(Program, AModelIsFoundInTheHubCache) {
  const TemporaryDirectory home;
  const std::string repository = "hub/models--some--model/";
  home.Write(repository + "refs/main", "abc123");
  std::filesystem::create_directories(home.path() / repository / "snapshots");
  std::filesystem::create_directory_symlink(SharedModel().path(),
                                            home.path() / repository / "snapshots" / "abc123");
  const ProgramOptions options{.environment = {"HF_HOME=" + home.path().string(), "HF_HUB_CACHE="}};
  const auto found = RunProgram({"tokenize", "--model", "some/model", "the"}, options);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_EQ(found.out, "1 173\n");
  const auto missing = RunProgram({"tokenize", "--model", "some/other", "the"}, options);
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("some/other"));
}

// Every command that prints results notices failed writes.
TEST(Program, AFullDiskIsAnError) {
  const std::string model = SharedModel().path();
  const TemporaryDirectory directory;
  const auto ids = directory.Write("ids.txt", "1 10 20");
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"generate", "--help"},
      {"generate", "--model", model, "the", "-n", "4"},
      {"generate", "--model", model, "the", "-n", "4", "--json"},
      {"tokenize", "--model", model, "the"},
      {"detokenize", "--model", model, "20"},
      {"logits", "--model", model, "--tokens-file", ids.string(), "--json"},
      {"inspect", "--model", model},
      {"bench", "--model", model, "--context", "8", "--repeats", "1", "--steps", "1"},
      {"eval", "generate", "--task", "vt", "--length", "1k"},
  };
  for (const auto& command : commands) {
    const auto result = RunProgram(command, {.output_file = "/dev/full"});
    EXPECT_EQ(result.exit_code, 1) << command[0];
    EXPECT_THAT(result.err, HasSubstr("No space left on device")) << command[0];
  }
}

TEST(Program, AClosedOutputIsAnError) {
  const auto result =
      RunProgram({"tokenize", "--model", SharedModel().path(), "the"}, {.closed_output = true});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
}

TEST(Program, AClosedPipeEndsQuietly) {
  Program endless({"generate", "--model", EndlessModel().path(), "the", "-n", "0", "--ignore-eos"},
                  {});
  EXPECT_TRUE(endless.WaitForBytes(100));
  endless.CloseOutput();
  const auto result = endless.Finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");

  Program samples({"eval", "generate", "--length", "1k", "--count", "100000"}, {});
  EXPECT_TRUE(samples.WaitForOutput("\n"));
  samples.CloseOutput();
  const auto ended = samples.Finish();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
}

TEST(Program, InspectShowsModelAndMemory) {
  const auto text = RunProgram({"inspect", "--model", SharedModel().path()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("llama"));
  EXPECT_THAT(text.out, HasSubstr("Memory budget"));
  EXPECT_THAT(text.out, HasSubstr("chat template yes"));
}

TEST(Program, InspectAsJson) {
  const auto model = RunProgram({"inspect", "--model", SharedModel().path(), "--json"});
  ASSERT_EQ(model.exit_code, 0) << model.err;
  const auto json = nlohmann::json::parse(model.out);
  EXPECT_EQ(json["layers"], 3);
  EXPECT_EQ(json["parameters"], 212416);  // counted by Transformers
  EXPECT_EQ(json["memory"]["kv_per_token"], 2 * 3 * 1 * 64 * 2);
  EXPECT_EQ(json["tokenizer"]["vocab_size"], 182);
  EXPECT_EQ(json["chat_template"], true);

  const auto shape = RunProgram({"inspect", "--shape", "llama3-8b", "--memory", "17GiB", "--json"});
  ASSERT_EQ(shape.exit_code, 0) << shape.err;
  EXPECT_EQ(nlohmann::json::parse(shape.out)["parameters"], 8030261248);  // as published
  EXPECT_EQ(RunProgram({"inspect", "--shape", "llama9"}).exit_code, 2);
  const auto small = RunProgram({"inspect", "--shape", "llama3-8b", "--memory", "8GiB"});
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_THAT(small.out, HasSubstr("8.00 GiB"));
  EXPECT_EQ(RunProgram({"inspect"}).exit_code, 2);
}

// A plan for a GPU that this machine does not need to have.
TEST(Program, InspectPlansTwoMemories) {
  const std::vector<std::string> words = {"inspect", "--shape",         "llama3.1-8b", "--device",
                                          "cuda",    "--kv-policy",     "litecache",   "--memory",
                                          "20GiB",   "--device-memory", "24GiB"};
  const auto text = RunProgram(words);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"GPU memory 24.0 GiB", "Host memory 20.0 GiB", "cached rows",
                           "retriever metadata", "staging", "Largest context 131072"}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
  std::vector<std::string> json_words = words;
  json_words.push_back("--json");
  const auto json = nlohmann::json::parse(RunProgram(json_words).out)["memory"];
  EXPECT_EQ(json["device_budget"], uint64_t{24} << 30);
  EXPECT_EQ(json["host_budget"], uint64_t{20} << 30);
  // Layers 0 to 2 are not predicted and stay on the device: 29 of 32 are offloaded, 58 KiB a
  // token in 8 bits.
  json_words[8] = "4GiB";
  const auto less = nlohmann::json::parse(RunProgram(json_words).out)["memory"];
  EXPECT_NEAR(less["largest_context"].get<double>(), 4.0 * 1024 * 1024 / 58, 1024);
  json_words.insert(json_words.end(), {"--max-context", "100000"});
  const auto refused = nlohmann::json::parse(RunProgram(json_words).out)["memory"];
  EXPECT_THAT(refused["error"].get<std::string>(), HasSubstr("of host memory"));
  EXPECT_THAT(refused["error"].get<std::string>(), HasSubstr("--host-memory"));
}

TEST(Program, RowsStayOnTheGpuWhereThereIsRoomForAllRequests) {
  const auto resident = [](const char* memory, const char* batch,
                           const std::vector<std::string>& more) {
    std::vector<std::string> words = {"inspect",     "--shape",   "llama3.1-8b",     "--device",
                                      "cuda",        "--json",    "--memory",        "40GiB",
                                      "--kv-policy", "litecache", "--device-memory", memory,
                                      "--max-batch", batch};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = RunProgram(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["memory"]["resident_heads"].get<int64_t>();
  };
  constexpr int64_t kAll = 32 * 8, kUnpredicted = 3 * 8;
  // 16 GiB of rows and 2.1 of their codes, beside 15 of weights.
  EXPECT_EQ(resident("40GiB", "1", {}), kAll);
  EXPECT_EQ(resident("32GiB", "1", {}), kUnpredicted);
  EXPECT_EQ(resident("32GiB", "1", {"--max-context", "65536"}), kAll);
  EXPECT_EQ(resident("40GiB", "2", {}), kUnpredicted);
  EXPECT_EQ(resident("40GiB", "64", {"--max-context", "2048"}), kAll);
  EXPECT_EQ(resident("40GiB", "1", {"--resident-heads", "none"}), kUnpredicted);
}

TEST(Program, InspectSaysWhatFitsOnACard) {
  const std::vector<std::string> words = {"inspect", "--shape",  "llama3.1-8b", "--card",
                                          "24GiB",   "--memory", "64GiB"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    const auto result = RunProgram(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const auto text = with({});
  EXPECT_THAT(text.out, HasSubstr("On a card of 24.0 GiB"));
  EXPECT_THAT(text.out, HasSubstr("litecache 131072"));
  const auto json = nlohmann::json::parse(with({"--json"}).out);
  // (24 GiB - 512 MiB) * 0.9 without 15 GiB of weights and the buffers, at 128 KiB a token.
  const double left = (23.5 * 0.9 * (uint64_t{1} << 30)) - json["memory"]["weights"].get<double>() -
                      json["memory"]["buffers"].get<double>();
  EXPECT_GT(json["memory"]["buffers"].get<double>(), 1 << 20);
  EXPECT_NEAR(json["card"]["full"].get<double>(), left / (128 << 10), 512);
  EXPECT_EQ(json["card"]["litecache"], 131072);
  const auto whole = nlohmann::json::parse(with({"--json", "--max-context", "131072"}).out);
  EXPECT_EQ(whole["card"]["litecache"], 131072);
  EXPECT_EQ(json["memory"]["policy"], "full");

  const auto chosen = with({"--json", "--kv-policy", "auto"});
  EXPECT_EQ(nlohmann::json::parse(chosen.out)["memory"]["policy"], "litecache");
  EXPECT_THAT(chosen.err, HasSubstr("--kv-policy auto: litecache, because full has room for"));
  const auto refused = with({"-c", "131072"});
  EXPECT_THAT(refused.out, HasSubstr("or use --kv-policy litecache, whose KV fits with "));
}

// Without --max-batch, the most sequences whose buffers cost no long context.
TEST(Program, InspectPlansForAsManySequencesAsCostNoContext) {
  const auto plan = [](const char* policy, const char* memory, int64_t batch) {
    const auto result = RunProgram(
        {"inspect", "--shape", "llama3.1-8b", "--device", "cuda", "--memory", "20GiB", "--json",
         "--kv-policy", policy, "--device-memory", memory, "--max-batch", std::to_string(batch)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["memory"];
  };
  const auto context = [](const nlohmann::json& memory) {
    return memory["largest_context"].get<int64_t>();
  };
  for (const char* policy : {"full", "litecache"}) {
    std::set<int64_t> chosen;
    for (const char* memory : {"15.3GiB", "15.4GiB", "16GiB", "22GiB", "40GiB"}) {
      SCOPED_TRACE(::testing::Message() << policy << ", " << memory);
      const auto automatic = plan(policy, memory, 0);
      const int64_t batch = automatic["max_batch"];
      chosen.insert(batch);
      EXPECT_EQ(plan(policy, memory, batch), automatic);
      const int64_t single = context(plan(policy, memory, 1));
      const int64_t enough = single == 131072 ? single : single * 7 / 8;
      EXPECT_GE(context(automatic), enough);
      if (batch < 64) {
        EXPECT_LT(context(plan(policy, memory, 2 * batch)), enough);
      }
    }
    EXPECT_EQ(*chosen.rbegin(), 64);
    EXPECT_LT(*chosen.begin(), 64);
  }
}

TEST(Program, AModelThatDoesNotFitIsRefusedWithTheNumbers) {
  const auto result =
      RunProgram({"inspect", "--model", SharedModel().path(), "--memory", "100KiB"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("100 KiB"));
}

}  // namespace
}  // namespace litecache::testing
