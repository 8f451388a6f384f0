// LongBench's files, prompts and truncation, on synthetic files.
#include "eval/longbench/longbench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "eval/longbench/records.h"
#include "eval/longbench/truncate.h"
#include "expect_error.h"
#include "source_directory.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using nlohmann::json;

const tokenizer::Tokenizer& Model() {
  static const auto tokenizer =
      tokenizer::Tokenizer::FromModel(SourceDirectory() / "models/litecache-demo-16m");
  return *tokenizer;
}

json Record(const std::string& context) {
  return {{"input", "Where is the {key}?"}, {"context", context},
          {"answers", {"here", "there"}},   {"length", 12},
          {"dataset", "hotpotqa"},          {"language", "en"},
          {"all_classes", nullptr},         {"_id", "5f"}};
}

class LongBench : public ::testing::Test {
 protected:
  LongBench() {
    Write("dataset2prompt.json",
          R"({"hotpotqa": "Read {{this}}:\n{context}\nQuestion: {input}\nAnswer:",
              "trec": "{context}\n{input}", "gov_report": "Sum up {context}.",
              "passage_retrieval_en": "{context} {input}"})");
  }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((directory_.path() / name).parent_path());
    std::ofstream(directory_.path() / name, std::ios::binary) << text;
  }
  std::vector<Sample> Load(const std::string& dataset, int64_t max_length = 4096, int64_t count = 0,
                           int64_t start = 0, int64_t reserved = 0) {
    return LoadLongBench({.directory = directory_.path(),
                          .datasets = {dataset},
                          .max_length = max_length,
                          .reserved = reserved,
                          .count = count,
                          .start = start},
                         Model());
  }
  std::string File(const std::string& name) { return (directory_.path() / name).string(); }

  testing::TemporaryDirectory directory_;
};

TEST_F(LongBench, PutsRecordsIntoThePrompt) {
  Write("hotpotqa.jsonl",
        Record("Some {context} text.").dump() + "\r\n\n" + Record("漢字").dump(-1, ' ', true));
  const std::vector<Sample> samples = Load("hotpotqa", 300);
  ASSERT_EQ(samples.size(), 2u);
  const Sample& sample = samples[0];
  EXPECT_EQ(sample.input,
            "Read {this}:\nSome {context} text.\nQuestion: Where is the {key}?\nAnswer:");
  EXPECT_EQ(samples[1].input, "Read {this}:\n漢字\nQuestion: Where is the {key}?\nAnswer:");
  EXPECT_EQ(sample.id, "hotpotqa/0");
  EXPECT_EQ(sample.task, "hotpotqa");
  EXPECT_EQ(sample.references, (std::vector<std::string>{"here", "there"}));
  EXPECT_EQ(sample.metric, "qa_f1");
  EXPECT_EQ(sample.max_new_tokens, 32);
  EXPECT_EQ(sample.length, 300);
  EXPECT_TRUE(sample.chat_template);
  EXPECT_EQ(sample.answer_prefix, "");
  EXPECT_EQ(sample.metadata["_id"], "5f");
  EXPECT_EQ(sample.metadata["truncated"], false);
  EXPECT_EQ(sample.metadata["tokens"], static_cast<int64_t>(Model().Encode(sample.input).size()));
}

TEST_F(LongBench, TakesAWindowOfTheSamplesAndTheSubfoldersOfThePublication) {
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += Record("text " + std::to_string(i)).dump() + "\n";
  Write("data/hotpotqa_e.jsonl", lines);
  std::filesystem::create_directories(directory_.path() / "config");
  std::filesystem::rename(File("dataset2prompt.json"), File("config/dataset2prompt.json"));
  const std::vector<Sample> samples = Load("hotpotqa_e", 4096, 3, 7);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].id, "hotpotqa_e/7");
  EXPECT_THAT(samples[1].input, ::testing::HasSubstr("text 8"));
}

TEST_F(LongBench, KeepsBothEndsOfLongPrompts) {
  auto random = testing::TestRandom(1);
  std::string context;
  for (int i = 0; i < 3000; ++i) {
    context += random() % 9 == 0 ? "é漢🜁 " : std::to_string(random() % 100000) + " word\n";
  }
  Write("hotpotqa.jsonl", Record(context).dump());
  for (const int64_t length : {35, 333, 4096}) {
    for (const int64_t reserved : {0, 1}) {
      const std::vector<Sample> samples = Load("hotpotqa", length, 0, 0, reserved);
      const std::string& text = samples[0].input;
      EXPECT_EQ(samples[0].metadata["truncated"], true);
      const auto tokens = static_cast<int64_t>(Model().Encode(text).size());
      EXPECT_EQ(samples[0].metadata["tokens"], tokens);
      const int64_t budget = length - 32 - reserved;
      EXPECT_LE(tokens, budget);
      EXPECT_GE(tokens, budget - 8);
      // The rest consists of the two ends of the whole prompt, each hardly shorter than half of the
      // rest.
      const std::string whole =
          "Read {this}:\n" + context + "\nQuestion: Where is the {key}?\nAnswer:";
      size_t first = 0;
      while (first < text.size() && text[first] == whole[first]) ++first;
      size_t last = 0;
      while (last < text.size() && text[text.size() - 1 - last] == whole[whole.size() - 1 - last]) {
        ++last;
      }
      // A cut inside a character leaves replacement characters.
      EXPECT_GE(first + last + 24, text.size());
    }
  }
  EXPECT_ERROR(Load("hotpotqa", 33), InvalidArgument, "33 tokens", "32 of the answer");
}

TEST_F(LongBench, ClassificationBringsItsLabelsAndNoTemplate) {
  json record = Record("Question: x\nType: Date");
  record["all_classes"] = {"Date", "Number"};
  record["answers"] = {"Number"};
  Write("trec.jsonl", record.dump());
  const Sample sample = Load("trec")[0];
  EXPECT_FALSE(sample.chat_template);
  EXPECT_EQ(sample.classes, (std::vector<std::string>{"Date", "Number"}));
  EXPECT_EQ(ScoreSample(sample, "\n\nNumber\nQuestion: Date"), 1);
  EXPECT_EQ(ScoreSample(sample, "Number Date"), 0.5);
  record["all_classes"] = nullptr;
  Write("trec.jsonl", "\n" + record.dump());
  EXPECT_ERROR(Load("trec"), FileError, "trec.jsonl:2", "all_classes");
}

TEST_F(LongBench, ErrorsNameFileLineAndField) {
  Write("hotpotqa.jsonl", Record("x").dump() + "\n{\"input\": \"x\",\n");
  EXPECT_ERROR(Load("hotpotqa"), FileError, File("hotpotqa.jsonl") + ":2:", "not valid JSON");
  for (const char* field : {"input", "context", "answers"}) {
    json record = Record("x");
    record.erase(field);
    Write("hotpotqa.jsonl", "\n\n" + record.dump());
    EXPECT_ERROR(Load("hotpotqa"), FileError, "hotpotqa.jsonl:3: field '", field, "is missing");
    record[field] = 3;
    Write("hotpotqa.jsonl", record.dump());
    EXPECT_ERROR(Load("hotpotqa"), FileError, "hotpotqa.jsonl:1: field '", field, "= 3");
  }
  json record = Record("x");
  record["answers"] = json::array();
  Write("hotpotqa.jsonl", record.dump());
  EXPECT_ERROR(Load("hotpotqa"), FileError, "hotpotqa.jsonl:1: field 'answers'");
  record["answers"] = {"Paragraph x"};
  Write("passage_retrieval_en.jsonl", record.dump());
  EXPECT_ERROR(Load("passage_retrieval_en"), FileError, "jsonl:1: field 'answers'", "Paragraph");
  Write("hotpotqa.jsonl", " \n");
  EXPECT_ERROR(Load("hotpotqa"), FileError, "hotpotqa.jsonl", "no samples");
}

TEST_F(LongBench, ErrorsSayWhereToGetWhatIsMissing) {
  EXPECT_ERROR(Load("hotpotqa"), FileError, File("hotpotqa.jsonl"), "data.zip",
               "huggingface.co/datasets/THUDM/LongBench");
  EXPECT_ERROR(Load("qasper2"), InvalidArgument, "qasper2", "narrativeqa", "repobench-p");
  EXPECT_ERROR(Load("musique_e"), InvalidArgument, "musique_e");  // not part of LongBench-E
  Write("lcc.jsonl", Record("x").dump());
  EXPECT_ERROR(Load("lcc"), FileError, "dataset2prompt.json: field 'lcc' is missing");
  Write("dataset2prompt.json", R"({"lcc": "{context} {answer}"})");
  EXPECT_ERROR(Load("lcc"), FileError, "dataset2prompt.json: field 'lcc'", "braces");
  std::filesystem::remove(File("dataset2prompt.json"));
  EXPECT_ERROR(Load("lcc"), FileError, File("dataset2prompt.json"), "github.com/THUDM/LongBench");
  EXPECT_ERROR(
      LoadLongBench({.directory = directory_.path() / "nowhere", .max_length = 4096}, Model()),
      FileError, "nowhere: is not a directory", "data.zip", "dataset2prompt.json");
}

TEST(LongBenchDatasets, AreThe21WithMetricsThatExist) {
  std::set<std::string_view> names;
  int chat = 0;
  int in_e = 0;
  const auto metrics = MetricNames();
  for (const LongBenchDataset& dataset : LongBenchDatasets()) {
    names.insert(dataset.name);
    chat += dataset.chat_template;
    in_e += dataset.in_e;
    EXPECT_THAT(metrics, ::testing::Contains(dataset.metric));
  }
  EXPECT_EQ(names.size(), 21u);
  EXPECT_EQ(chat, 15);
  EXPECT_EQ(in_e, 13);
}

TEST(TruncateMiddle, LeavesShortTextsAlone) {
  const std::string text = "  One\u3000two \n";
  const auto tokens = static_cast<int64_t>(Model().Encode(text).size());
  EXPECT_EQ(TruncateMiddle(text, tokens, Model()).text, text);
  EXPECT_FALSE(TruncateMiddle(text, tokens, Model()).truncated);
  EXPECT_TRUE(TruncateMiddle(text, tokens - 1, Model()).truncated);
  EXPECT_ERROR(TruncateMiddle(text, 1, Model()), InvalidArgument, "1 tokens");
}

}  // namespace
}  // namespace litecache::eval
