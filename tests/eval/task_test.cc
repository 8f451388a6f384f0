// JSON lines of samples: what is accepted, what is rejected, and with which message.
#include "eval/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/ruler/suite.h"
#include "eval/ruler_testing.h"
#include "expect_error.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using nlohmann::json;

json Line() {
  return {{"input", "2 + 2? It is"}, {"outputs", {"4", "four"}}, {"max_new_tokens", 5}};
}

TEST(Jsonl, FillsInWhatMayBeAbsent) {
  const std::vector<Sample> samples =
      ParseJsonl("\n" + Line().dump() + "\r\n  \n" + Line().dump(), "/x/sums.jsonl");
  ASSERT_EQ(samples.size(), 2u);
  const Sample& sample = samples[0];
  EXPECT_EQ(sample.id, "sums/2");
  EXPECT_EQ(samples[1].id, "sums/4");
  EXPECT_EQ(sample.task, "sums");
  EXPECT_EQ(sample.input, "2 + 2? It is");
  EXPECT_EQ(sample.answer_prefix, "");
  EXPECT_TRUE(sample.chat_template);
  EXPECT_EQ(sample.references, (std::vector<std::string>{"4", "four"}));
  EXPECT_EQ(sample.max_new_tokens, 5);
  EXPECT_EQ(sample.metric, "string_match_all");
  EXPECT_EQ(sample.length, 0);
  EXPECT_EQ(ScoreSample(sample, "It is four"), 0.5);
}

TEST(Jsonl, ReadsAllFieldsAndKeepsForeignOnes) {
  json line = Line();
  line.update({{"id", "a"},
               {"task", "sum"},
               {"answer_prefix", " It is"},
               {"outputs", "4"},
               {"metric", "classification"},
               {"classes", {"4", "5"}},
               {"length", 4096},
               {"chat_template", false},
               {"depths", {0.5}},
               {"note", {{"x", nullptr}}}});
  const Sample sample = ParseJsonl(line.dump(), "f.jsonl").at(0);
  EXPECT_EQ(sample.id, "a");
  EXPECT_EQ(sample.task, "sum");
  EXPECT_EQ(sample.input, "2 + 2?");
  EXPECT_EQ(sample.answer_prefix, " It is");
  EXPECT_EQ(sample.references, std::vector<std::string>{"4"});
  EXPECT_EQ(sample.classes, (std::vector<std::string>{"4", "5"}));
  EXPECT_EQ(sample.length, 4096);
  EXPECT_FALSE(sample.chat_template);
  EXPECT_EQ(sample.metadata.dump(), R"({"depths":[0.5],"note":{"x":null}})");
}

TEST(Jsonl, ErrorsNameFileLineAndField) {
  const auto parse = [](const std::string& text) { ParseJsonl(text, "dir/f.jsonl"); };
  const std::string good = Line().dump() + "\n";
  EXPECT_ERROR(parse(good + "{\"input\": \"x\""), FileError, "dir/f.jsonl:2:", "not valid JSON");
  EXPECT_ERROR(parse(good + "\n[1]"), FileError, "dir/f.jsonl:3: must hold a JSON object");
  EXPECT_ERROR(parse(good + "\"\xff\""), FileError, "dir/f.jsonl:2:");
  EXPECT_ERROR(parse("{\"a\": " + std::string(200000, '[')), FileError, "dir/f.jsonl:1", "nested");
  EXPECT_ERROR(parse(" \n"), FileError, "dir/f.jsonl: holds no samples");
  struct Case {
    const char* field;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"input", nullptr, "is missing"},
      {"input", 3, "= 3: must be a string"},
      {"outputs", nullptr, "is missing"},
      {"outputs", json::array(), "must hold an answer"},
      {"outputs", {1}, "must be a list of strings"},
      {"outputs", {{"a", 1}}, "must be a list of strings"},
      {"max_new_tokens", nullptr, "is missing"},
      {"max_new_tokens", 0, "must be an integer from 1"},
      {"max_new_tokens", 1e300, "must be an integer from 1"},
      {"metric", "f2", "\"f2\": must be one of string_match_all, "},
      {"metric", 2, "must be a string"},
      {"metric", "retrieval", "no 'Paragraph '"},
      {"chat_template", "yes", "must be true or false"},
      {"length", -1, "must be an integer from 0"},
      {"id", 7, "must be a string"},
      {"classes", "a", "must be a list of strings"},
      {"answer_prefix", {1}, "must be a string"},
  };
  for (const Case& item : cases) {
    json line = Line();
    line[item.field] = item.value;
    const std::string named =
        // References that the metric cannot read.
        item.value == "retrieval" ? "outputs" : item.field;
    EXPECT_ERROR(parse(good + line.dump()), FileError, "dir/f.jsonl:2: field '" + named + "'",
                 item.message);
  }
  json line = Line();
  line["metric"] = "classification";
  EXPECT_ERROR(parse(line.dump()), FileError, "dir/f.jsonl:1: field 'classes'");
  line = Line();
  line["id"] = "f/2";
  EXPECT_ERROR(parse(line.dump() + "\n" + Line().dump()), FileError,
               "dir/f.jsonl:2: field 'id': 'f/2' occurs twice");
  EXPECT_ERROR(LoadJsonl("/nowhere/f.jsonl"), FileError, "/nowhere/f.jsonl");
}

TEST(Jsonl, ReadsWhatTheGeneratorWrites) {
  GenerateOptions options;
  options.tasks = {"niah_multivalue", "vt"};
  options.length = 2048;
  options.count = 3;
  options.seed = testing::TestSeed();
  options.threads = 1;
  std::ostringstream lines;
  RunGenerate(options, CountPieces, lines);
  const std::vector<Sample> read = ParseJsonl(lines.str(), "ruler.jsonl");
  const std::vector<Sample> made = MakeRulerSamples(options, CountPieces);
  ASSERT_EQ(read.size(), 6u);
  ASSERT_EQ(made.size(), read.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].id, made[i].id);
    EXPECT_EQ(read[i].task, made[i].task);
    EXPECT_EQ(read[i].input, made[i].input);
    EXPECT_EQ(read[i].answer_prefix, made[i].answer_prefix);
    EXPECT_FALSE(read[i].answer_prefix.empty());
    EXPECT_EQ(read[i].references, made[i].references);
    EXPECT_EQ(read[i].max_new_tokens, made[i].max_new_tokens);
    EXPECT_EQ(read[i].metric, made[i].metric);
    EXPECT_EQ(read[i].metadata["depths"], made[i].metadata["depths"]);
    EXPECT_LE(CountPieces(made[i].input + made[i].answer_prefix) + made[i].max_new_tokens,
              made[i].length);
  }
}

}  // namespace
}  // namespace litecache::eval
