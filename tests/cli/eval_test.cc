#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/fixture_model.h"
#include "cli/program.h"

namespace litecache::testing {
namespace {

using ::testing::HasSubstr;

ProgramResult Generate(std::vector<std::string> words) {
  words.insert(words.begin(), {"eval", "generate"});
  return RunProgram(words);
}

std::vector<nlohmann::json> Lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(EvalGenerate, AllTasks) {
  const auto result = Generate({"--length", "4k", "--count", "2", "--seed", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = Lines(result.out);
  EXPECT_EQ(lines.size(), 22u);
  for (const auto& line : lines) {
    for (const char* key : {"input", "outputs", "max_new_tokens", "metric"}) {
      EXPECT_TRUE(line.contains(key)) << key;
    }
  }
}

// The length is in the model's tokens, counted here by the program's tokenizer.
TEST(EvalGenerate, LengthIsInTheModelsTokens) {
  const auto result = Generate({"--task", "niah_single_1", "--length", "2k", "--count", "2",
                                "--model", SharedModel().path()});
  const auto lines = Lines(result.out);
  ASSERT_EQ(lines.size(), 2u) << result.err;
  for (const auto& line : lines) {
    const auto ids = RunProgram({"tokenize", "--model", SharedModel().path(), "--json"},
                                {.input = line["input"].get<std::string>()});
    const auto tokens = nlohmann::json::parse(ids.out)["ids"].size();
    EXPECT_EQ(tokens + line["max_new_tokens"].get<size_t>(), line["length"].get<size_t>());
    EXPECT_LE(line["length"], 2048);
    EXPECT_GT(line["length"], 1900);
  }
}

TEST(EvalGenerate, SamplesFollowFromTheSeed) {
  const std::vector<std::string> words = {"--task", "vt", "--length", "1k", "--count", "3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return Generate(more).out;
  };
  EXPECT_EQ(with({"--seed", "1"}), with({"--seed", "1", "--threads", "1"}));
  EXPECT_NE(with({"--seed", "1"}), with({"--seed", "2"}));
  EXPECT_NE(with({"--split", "test"}), with({"--split", "train"}));
  const auto all = Lines(with({}));
  EXPECT_EQ(Lines(Generate({"--task", "vt", "--length", "1k", "--start", "2"}).out)[0], all[2]);
}

TEST(EvalGenerate, WritesAFileAndReadsAHaystack) {
  const TemporaryDirectory directory;
  std::string essay;
  for (int i = 0; i < 400; ++i) essay += "Sentence about marmalade. ";
  const auto haystack = directory.Write("essay.txt", essay);
  const std::string output = (directory.path() / "out.jsonl").string();
  const auto result = Generate({"--task", "niah_single_2", "--length", "1k", "--haystack",
                                haystack.string(), "--output", output});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  std::ifstream file(output);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("marmalade"));
}

TEST(EvalGenerate, QuestionsComeFromTheUsersFiles) {
  const TemporaryDirectory directory;
  directory.Write("dev-v2.0.json",
                  R"({"data": [{"paragraphs": [{"context": "Rivers run to the sea.", "qas": [
                     {"question": "Where to?", "is_impossible": false,
                      "answers": [{"text": "the sea"}]}]}]}]})");
  const auto result =
      Generate({"--task", "qa_1", "--length", "1k", "--qa-data", directory.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto line = Lines(result.out).at(0);
  EXPECT_THAT(line["input"].get<std::string>(),
              HasSubstr("Document 1:\nRivers run to the sea.\n\nDocument 2:\n"));
  EXPECT_EQ(line["outputs"], nlohmann::json::array({"the sea"}));
  const auto none = Generate({"--task", "qa_1", "--length", "1k"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("rajpurkar.github.io"));
  EXPECT_THAT(none.err, HasSubstr("--qa-data"));
  const auto all = Generate({"--qa-data", directory.path().string()});
  EXPECT_EQ(all.exit_code, 1);  // qa_2's file is missing
  EXPECT_THAT(all.err, HasSubstr("hotpot_dev_distractor_v1.json: not found"));
}

TEST(EvalGenerate, Errors) {
  const auto expect = [](const std::vector<std::string>& words, int code, const std::string& part) {
    const auto result = Generate(words);
    EXPECT_EQ(result.exit_code, code) << part;
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  expect({"--task", "nope"}, 2, "niah_single_1");
  expect({"--task", "vt", "--length", "10"}, 2, "10");
  expect({"--length", "x"}, 2, "x");
  expect({"--count", "0"}, 2, "--count");
  expect({"--split", "half"}, 2, "half");
  expect({"--haystack", "/nowhere/h.txt"}, 1, "/nowhere/h.txt");
  expect({"--tokenizer", "/nowhere/t.json"}, 1, "/nowhere/t.json");
  expect({"--output", "/nowhere/o"}, 1, "/nowhere/o");
}

}  // namespace
}  // namespace litecache::testing
