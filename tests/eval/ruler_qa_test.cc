// RULER's question-answering tasks on synthetic question files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "eval/metrics.h"
#include "eval/ruler/bulk.h"
#include "eval/ruler/questions.h"
#include "eval/ruler/run.h"
#include "eval/ruler_testing.h"
#include "expect_error.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Words that no template contains, and a mark that identifies the document.
std::string RandomText(std::mt19937_64& random, const std::string& mark) {
  std::string text = mark;
  const auto words = 5 + random() % 60;
  for (uint64_t i = 0; i < words; ++i) text += " w" + std::to_string(random() % 1000);
  return text + ".";
}

// Articles of paragraphs; every third question has no answer. The answer "answer A-P-Q" is in
// paragraph P of article A.
json Squad(int articles, int paragraphs) {
  auto random = testing::TestRandom(7);
  json root = {{"version", "v2.0"}, {"data", json::array()}};
  for (int a = 0; a < articles; ++a) {
    json article = {{"title", "t"}, {"paragraphs", json::array()}};
    for (int p = 0; p < paragraphs; ++p) {
      json qas = json::array();
      const std::string mark = std::to_string(a) + "-" + std::to_string(p);
      std::string context = RandomText(random, "par " + mark);
      for (int q = 0; q < 3; ++q) {
        const std::string answer = "answer " + mark + "-" + std::to_string(q);
        const bool impossible = q == 1;
        if (!impossible) context += " " + answer + " é漢.";
        qas.push_back(
            {{"question", "What is " + answer.substr(7) + "?"},
             {"is_impossible", impossible},
             {"answers", impossible ? json::array()
                                    : json::array({{{"text", answer}, {"answer_start", 1}},
                                                   {{"text", "or " + answer}}})}});
      }
      article["paragraphs"].push_back({{"context", context}, {"qas", qas}});
    }
    root["data"].push_back(article);
  }
  return root;
}

// Questions about two of ten titled paragraphs, some of which several questions share.
json Hotpot(int questions) {
  auto random = testing::TestRandom(8);
  std::vector<json> paragraphs;
  for (int i = 0; i < questions * 6; ++i) {
    const std::string title = "Title " + std::to_string(i);
    paragraphs.push_back({title, {RandomText(random, "Fact " + std::to_string(i)), " Second ."}});
  }
  json root = json::array();
  for (int i = 0; i < questions; ++i) {
    json context = json::array();
    for (int p = 0; p < 10; ++p) {
      context.push_back(paragraphs[static_cast<size_t>(i * 5 + p) % paragraphs.size()]);
    }
    root.push_back({{"_id", std::to_string(i)},
                    {"question", "Which is " + std::to_string(i) + "?"},
                    {"answer", i % 3 == 0 ? "yes" : "Fact " + std::to_string(i * 5 + 3)},
                    {"supporting_facts", json::array({json::array({context[3][0], 0}),
                                                      json::array({context[7][0], 1})})},
                    {"context", context}});
  }
  return root;
}

std::shared_ptr<const QuestionSet> SquadSet(int articles = 9, int paragraphs = 7) {
  return std::make_shared<const QuestionSet>(
      ParseSquad(Squad(articles, paragraphs).dump(), "squad.json"));
}
std::shared_ptr<const QuestionSet> HotpotSet(int questions = 30) {
  return std::make_shared<const QuestionSet>(
      ParseHotpotQa(Hotpot(questions).dump(), "hotpot.json"));
}

Generator Make(const std::string& task, int64_t length,
               std::shared_ptr<const QuestionSet> questions) {
  return Generator({.task = task,
                    .length = length,
                    .seed = testing::TestSeed(),
                    .questions = std::move(questions)},
                   CountPieces);
}

// The documents of a prompt in the original's template; the test fails if its form differs.
std::vector<std::string> Documents(const RulerSample& sample, const std::string& question) {
  const std::string instruction =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.";
  const std::string head = instruction + "\n\nThe following are given documents.\n\n";
  const std::string tail = "\n\n" + instruction + "\n\nQuestion: " + question + " Answer:";
  EXPECT_TRUE(sample.input.starts_with(head)) << sample.input.substr(0, 300);
  EXPECT_TRUE(sample.input.ends_with(tail));
  const std::string context =
      sample.input.substr(head.size(), sample.input.size() - head.size() - tail.size());
  std::vector<std::string> documents;
  for (const std::string& part : SplitText(context, "\n\n")) {
    const std::string label = "Document " + std::to_string(documents.size() + 1) + ":\n";
    EXPECT_TRUE(part.starts_with(label)) << part;
    documents.push_back(part.substr(label.size()));
  }
  return documents;
}

void ExpectForm(const RulerSample& sample, const QuestionSet& set, int64_t index, int64_t length) {
  const Question& question = set.questions.at(static_cast<size_t>(index));
  const std::vector<std::string> documents = Documents(sample, question.text);
  EXPECT_EQ(sample.outputs, question.answers);
  EXPECT_EQ(sample.metric, "string_match_part");
  EXPECT_EQ(sample.max_new_tokens, 32);
  EXPECT_EQ(sample.answer_prefix, " Answer:");
  EXPECT_EQ(sample.length, CountPieces(sample.input) + 32);
  EXPECT_LE(sample.length, length);
  std::multiset<std::string> all(documents.begin(), documents.end());
  for (const int64_t number : question.documents) {
    EXPECT_GE(all.count(set.documents[static_cast<size_t>(number)]), 1u);
  }
  // Every document occurs once before any occurs twice.
  const std::set<std::string> distinct(documents.begin(), documents.end());
  EXPECT_EQ(distinct.size(), std::min(documents.size(), set.documents.size()));
  for (const std::string& document : distinct) {
    EXPECT_TRUE(std::binary_search(set.documents.begin(), set.documents.end(), document));
  }
  // No further document would have fitted: the longest has 66 words of up to two pieces.
  if (documents.size() < set.documents.size()) {
    EXPECT_GT(sample.length, length - 200);
  }
  for (const Needle& needle : sample.needles) {
    const std::string text = sample.input.substr(static_cast<size_t>(needle.begin),
                                                 static_cast<size_t>(needle.end - needle.begin));
    EXPECT_TRUE(distinct.count(text)) << text;
    EXPECT_GE(needle.depth, 0);
    EXPECT_LT(needle.depth, 1);
  }
}

TEST(RulerQa, SquadAsksItsAnswerableQuestionsInOrder) {
  const auto set = SquadSet();
  EXPECT_EQ(set->questions.size(), 9u * 7 * 2);
  EXPECT_EQ(set->documents.size(), 63u);
  EXPECT_EQ(set->questions[1].text, "What is 0-0-2?");
  EXPECT_EQ(set->questions[1].answers,
            (std::vector<std::string>{"answer 0-0-2", "or answer 0-0-2"}));
  EXPECT_EQ(set->questions[1].related.size(), 6u);
  for (const int64_t length : {253, 1531, 4093, 16001}) {
    const Generator generator = Make("qa_1", length, set);
    for (const int64_t index : {0, 5, 125}) {
      const RulerSample sample = generator.Make(index);
      ExpectForm(sample, *set, index, length);
      ASSERT_GE(sample.needles.size(), 1u);
      const Needle& needle = sample.needles[0];
      EXPECT_THAT(sample.input.substr(static_cast<size_t>(needle.begin),
                                      static_cast<size_t>(needle.end - needle.begin)),
                  HasSubstr(sample.outputs[0]));
    }
  }
}

// As in the original, the documents of the question's article come before those of other articles.
TEST(RulerQa, SquadTakesTheArticleFirst) {
  const auto set = SquadSet();
  for (const int64_t length : {353, 2003}) {
    const Generator generator = Make("qa_1", length, set);
    for (int64_t index = 0; index < 40; ++index) {
      const RulerSample sample = generator.Make(index);
      const Question& question = set->questions[static_cast<size_t>(index)];
      const std::string article = question.text.substr(8, question.text.find('-') - 8);
      size_t same = 0;
      const auto documents = Documents(sample, question.text);
      for (const std::string& document : documents) {
        same += document.starts_with("par " + article + "-");
      }
      EXPECT_EQ(same, std::min<size_t>(7, documents.size()));
    }
  }
}

TEST(RulerQa, HotpotKeepsItsTenParagraphs) {
  const auto set = HotpotSet();
  EXPECT_EQ(set->questions.size(), 30u);
  EXPECT_EQ(set->questions[3].documents.size(), 10u);
  EXPECT_EQ(set->questions[3].evidence.size(), 2u);
  for (const int64_t length : {2003, 4093, 30011}) {
    const Generator generator = Make("qa_2", length, set);
    for (const int64_t index : {0, 7, 29}) {
      const RulerSample sample = generator.Make(index);
      ExpectForm(sample, *set, index, length);
      EXPECT_GE(sample.needles.size(), 2u);
    }
  }
}

TEST(RulerQa, SamplesAreFunctionsOfSeedAndIndex) {
  const auto set = SquadSet();
  const Generator generator = Make("qa_1", 2053, set);
  const std::string third = generator.Make(3).input;
  generator.Make(0);
  EXPECT_EQ(generator.Make(3).input, third);
  EXPECT_EQ(Make("qa_1", 2053, SquadSet()).Make(3).input, third);
  const Generator other(
      {.task = "qa_1", .length = 2053, .seed = testing::TestSeed() + 1, .questions = set},
      CountPieces);
  EXPECT_NE(other.Make(3).input, third);
  EXPECT_EQ(other.Make(3).outputs, generator.Make(3).outputs);  // the file determines the question
}

TEST(RulerQa, EvidenceReachesAllDepths) {
  const auto set = SquadSet(9, 20);
  const Generator generator = Make("qa_1", 8209, set);
  ExpectAllDepths(generator, 0.85);
}

TEST(RulerQa, ReadsTheFilesWhereTheyLie) {
  const testing::TemporaryDirectory directory;
  GenerateOptions options;
  options.tasks = {"all"};
  options.length = 4096;
  options.count = 2;
  options.threads = 1;
  EXPECT_EQ(ExpandTasks(options).size(), 11u);
  options.qa_data = directory.path();
  EXPECT_EQ(ExpandTasks(options).size(), 13u);
  options.tasks = {"qa_1", "qa_2"};
  std::ostringstream lines;
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), FileError,
               (directory.path() / "dev-v2.0.json").string(), "qa_1", "SQuAD",
               "rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json");
  directory.Write("dev-v2.0.json", Squad(5, 5).dump());
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), FileError,
               (directory.path() / "hotpot_dev_distractor_v1.json").string(), "HotpotQA",
               "curtis.ml.cmu.edu/datasets/hotpot/");
  directory.Write("hotpotqa.json", Hotpot(20).dump());
  lines.str("");
  EXPECT_EQ(RunGenerate(options, CountPieces, lines), 4);
  EXPECT_EQ(SplitText(lines.str(), "\n").size(), 5u);
  const json last = json::parse(SplitText(lines.str(), "\n")[3]);
  EXPECT_EQ(last["task"], "qa_2");
  EXPECT_EQ(last["metric"], "string_match_part");
  EXPECT_GE(last["depths"].size(), 2u);

  options.qa_data.clear();
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), FileError, "qa_1", "--qa-data",
               "LITECACHE_QA_DATA", "dev-v2.0.json");
  options.qa_data = directory.path();
  options.split = Split::kTrain;
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), InvalidArgument, "--split", "qa_1");
  options.split = Split::kTest;
  options.count = 51;
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), InvalidArgument, "--count",
               "qa_1 has 50 questions", "sample 50");
  options.count = 1;
  options.length = 60;
  EXPECT_ERROR(RunGenerate(options, CountPieces, lines), InvalidArgument, "--length: qa_1 needs");
}

TEST(RulerQa, IsNoTrainingMaterial) {
  for (const auto& [name, weight] : ParseTaskWeights("all")) EXPECT_FALSE(name.starts_with("qa_"));
  EXPECT_ERROR(BulkGenerator({.tasks = ParseTaskWeights("qa_1")}, CountPieces), InvalidArgument,
               "qa_1");
}

TEST(RulerQa, MalformedSquadFilesNameTheField) {
  const auto parse = [](const json& root) { ParseSquad(root.dump(), "dir/s.json"); };
  json root = Squad(2, 2);
  EXPECT_ERROR(ParseSquad("{\n\"data\": [", "dir/s.json"), FileError,
               "dir/s.json:2:", "valid JSON");
  EXPECT_ERROR(parse(json::array()), FileError, "dir/s.json: must hold a JSON object");
  EXPECT_ERROR(parse(json::object()), FileError, "dir/s.json: field 'data'", "list of objects");
  json bad = root;
  bad["data"][1]["paragraphs"][0].erase("context");
  EXPECT_ERROR(parse(bad), FileError, "field 'data[1].paragraphs[0].context' is missing");
  bad = root;
  bad["data"][1]["paragraphs"][1]["qas"][2]["answers"] = json::array();
  EXPECT_ERROR(parse(bad), FileError, "field 'data[1].paragraphs[1].qas[2].answers'", "an answer");
  bad = root;
  bad["data"][0]["paragraphs"][1]["qas"][0]["question"] = 5;
  EXPECT_ERROR(parse(bad), FileError, "'data[0].paragraphs[1].qas[0].question' = 5");
  EXPECT_ERROR(parse({{"data", json::array()}}), FileError, "dir/s.json: holds no question");
}

TEST(RulerQa, MalformedHotpotFilesNameTheField) {
  const auto parse = [](const json& root) { ParseHotpotQa(root.dump(), "dir/h.json"); };
  const json root = Hotpot(3);
  EXPECT_ERROR(parse(json::object()), FileError, "dir/h.json: must hold a JSON list");
  EXPECT_ERROR(parse({7}), FileError, "dir/h.json: field '[0]' = 7: must be an object");
  json bad = root;
  bad[1].erase("answer");
  EXPECT_ERROR(parse(bad), FileError, "field '[1].answer' is missing");
  for (const json& context :
       {json(), json(1), json::array(), json::array({1}), json::array({json::array({"t", {1}})})}) {
    bad = root;
    bad[2]["context"] = context;
    EXPECT_ERROR(parse(bad), FileError, "field '[2].context'", "[title, [sentence, ...]]");
  }
  bad = root;
  bad[0]["supporting_facts"] = {1};
  EXPECT_ERROR(parse(bad), FileError, "field '[0].supporting_facts'");
  bad[0].erase("supporting_facts");
  EXPECT_TRUE(ParseHotpotQa(bad.dump(), "h").questions[0].evidence.empty());
  EXPECT_ERROR(parse(json::array()), FileError, "dir/h.json: holds no question");
}

}  // namespace
}  // namespace litecache::eval
