#include <gmock/gmock.h>

#include <random>

#include "eval/run/journal.h"
#include "eval/run/results.h"
#include "expect_error.h"
#include "io/file.h"
#include "temporary_directory.h"
#include "test_seed.h"

namespace litecache::eval {
namespace {

using testing::ExpectError;
using testing::TemporaryDirectory;

Prediction MakePrediction(std::mt19937_64& random) {
  const auto number = [&] { return static_cast<double>(random() % 1000) / 8; };
  Prediction p;
  p.key = std::to_string(random());
  p.configuration = "hata-10%";
  p.task = "vt";
  p.length = 4096;
  p.id = "vt/" + std::to_string(random() % 1000000);
  p.prediction = "a \"quoted\"\nline – \xf0\x9f\x98\x80";
  p.references = {"x", "y\tz"};
  p.metric = "string_match_all";
  p.score = 0.25;
  p.prompt_tokens = 4000;
  p.generated_tokens = 31;
  p.finish = "stop";
  p.queue_seconds = number();
  p.decode_seconds = number();
  p.depths = {0.125, 1.0 / 3};
  if (random() % 2 == 0) p.drafts = {.drafted = 31, .accepted = 17, .passes = 14, .draft_steps = 9};
  p.kv.lookups = number();
  p.kv.hits = number();
  p.kv.miss_bytes = 1e15 + number();
  p.kv.recall_held = number();
  return p;
}

Window MakeWindow(std::mt19937_64& random, bool full) {
  Window w;
  w.key = std::to_string(random());
  w.configuration = full ? "full" : "quest-5%";
  w.length = 8192;
  w.index = 3;
  w.end = 10000;
  w.first = 8000;
  for (int i = 0; i < 37; ++i) {
    w.nll.push_back(static_cast<float>(random() % 256) / 16);
    if (full) continue;
    w.kl.push_back(static_cast<float>(random() % 4096) / 65536);
    w.same_top.push_back(random() % 2 == 0);
  }
  w.prompt = {{1024, 1023, 2048.5}, {2048, 1024, 99.25}};
  w.seconds = 1.5;
  w.kv.decode_tokens = 38;
  return w;
}

std::string Line(const nlohmann::ordered_json& json) { return json.dump() + "\n"; }

TEST(Results, RoundTrip) {
  std::mt19937_64 random(testing::TestSeed());
  const Prediction prediction = MakePrediction(random);
  const Window full = MakeWindow(random, true), other = MakeWindow(random, false);
  HeadTable heads{"hata-10%", 4096, 2, 3, {}};
  for (uint64_t i = 0; i < 6; ++i) {
    heads.heads.push_back({10 + i, i, 3 * i, 2 * i, 0.5 * static_cast<double>(i)});
  }
  const RunInfo info{"ruler", "DIR", "0123", "llama", "auto", true, ""};
  const std::string text = Line(ToJson(info)) + Line(ConfigurationJson("full", {{"eta", "1"}})) +
                           "\n" + Line(ToJson(prediction)) + Line(ToJson(full)) +
                           Line(ToJson(other)) + Line(ToJson(heads));
  size_t complete = 0;
  const Results results = ParseResults(text, "r.jsonl", &complete);
  EXPECT_EQ(complete, text.size());
  ASSERT_EQ(results.predictions.size(), 1u);
  ASSERT_EQ(results.windows.size(), 2u);
  ASSERT_EQ(results.heads.size(), 1u);
  EXPECT_EQ(ToJson(results.runs.at(0)), ToJson(info));
  EXPECT_EQ(ToJson(results.predictions[0]), ToJson(prediction));
  EXPECT_EQ(ToJson(results.windows[0]), ToJson(full));
  EXPECT_EQ(ToJson(results.windows[1]), ToJson(other));
  EXPECT_EQ(ToJson(results.heads[0]), ToJson(heads));
  EXPECT_EQ(results.predictions[0].depths, prediction.depths);
  EXPECT_EQ(results.predictions[0].drafts.passes, prediction.drafts.passes);
  EXPECT_EQ(results.predictions[0].kv.miss_bytes, prediction.kv.miss_bytes);
  EXPECT_EQ(results.windows[1].nll, other.nll);  // multiples of 1/16 below 16 have six digits
  EXPECT_EQ(results.configurations.at(0).first, "full");
}

TEST(Results, ErrorsNameLineAndField) {
  std::mt19937_64 random(testing::TestSeed());
  const nlohmann::ordered_json good = ToJson(MakePrediction(random));
  const auto expect = [&](const nlohmann::ordered_json& json, const std::string& part) {
    ExpectError<FileError>([&] { ParseResults(Line(good) + Line(json), "r.jsonl", nullptr); },
                           {"r.jsonl: line 2", part}, __FILE__, __LINE__);
  };
  for (const auto& [key, value] : good.items()) {
    auto json = good;
    json.erase(key);
    // Lines of answers without drafts have no such field.
    if (key != "drafts") expect(json, "'" + key + "' is missing");
    json[key] = nullptr;
    expect(json, "'" + key + "' = null");
  }
  expect({{"type", "nonsense"}}, "'type' = \"nonsense\"");
  expect(nlohmann::ordered_json::array(), "object");
  ExpectError<FileError>([&] { ParseResults(Line(good) + "{\"type\": \n", "r.jsonl", nullptr); },
                         {"r.jsonl: line 2"}, __FILE__, __LINE__);
  auto drafts = good;
  drafts["drafts"] = {{"drafted", 5}};
  expect(drafts, "'accepted' is missing");
  auto window = ToJson(MakeWindow(random, false));
  window["kl"].erase(0);
  expect(window, "'kl'");
  window = ToJson(MakeWindow(random, true));
  window["prompt"] = {1, 2};
  expect(window, "'prompt'");
}

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : random_(testing::TestSeed()), path_(directory_.path() / "out.jsonl") {}

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::filesystem::path path_;
  RunInfo info_{"ruler", "DIR", "fingerprint", "llama", "auto", false, ""};
  std::vector<Configuration> configurations_ = {{"full", {}}, {"hata-10%", {}}};
  std::vector<nlohmann::ordered_json> options_ = {OptionsJson({}), OptionsJson({})};
};

TEST_F(JournalTest, GoesOnWhereAKilledProcessStopped) {
  const Prediction first = MakePrediction(random_), second = MakePrediction(random_);
  {
    Journal journal(path_);
    journal.Begin(info_, configurations_, options_);
    journal.Add(first);
  }
  const std::string complete = io::ReadTextFile(path_);
  // The next line may have been written up to any point.
  const std::string line = Line(ToJson(second));
  for (size_t bytes = 0; bytes < line.size(); bytes += 1 + random_() % 37) {
    directory_.Write("out.jsonl", complete + line.substr(0, bytes));
    Journal journal(path_);
    journal.Begin(info_, configurations_, options_);
    EXPECT_TRUE(journal.Has(first.key));
    EXPECT_FALSE(journal.Has(second.key));
    ASSERT_EQ(journal.results().predictions.size(), 1u);
    journal.Add(second);
    EXPECT_TRUE(journal.Has(second.key));
    ASSERT_EQ(io::ReadTextFile(path_), complete + line) << bytes;
  }
}

TEST_F(JournalTest, NoticesWhatHasChanged) {
  const Prediction prediction = MakePrediction(random_);
  {
    Journal journal(path_);
    journal.Begin(info_, configurations_, options_);
    journal.Add(prediction);
  }
  Journal journal(path_);
  RunInfo other = info_;
  other.fingerprint = "another";
  ExpectError<InvalidArgument>([&] { journal.Begin(other, configurations_, options_); },
                               {"out.jsonl", "fingerprint", "another", "--restart"}, __FILE__,
                               __LINE__);
  other = info_;
  other.dtype = "f32";
  ExpectError<InvalidArgument>([&] { journal.Begin(other, configurations_, options_); },
                               {"dtype", "f32"}, __FILE__, __LINE__);
  auto options = options_;
  options[1]["eta"] = "0.5";
  ExpectError<InvalidArgument>([&] { journal.Begin(info_, configurations_, options); },
                               {"hata-10%", "eta", "0.5"}, __FILE__, __LINE__);
  ExpectError<InvalidArgument>([&] { journal.CheckName(Journal::Name(prediction), "otherkey"); },
                               {prediction.id}, __FILE__, __LINE__);
  journal.CheckName(Journal::Name(prediction), prediction.key);
  // Further configurations and another suite may be added.
  configurations_.push_back({"quest-10%", {}});
  options_.push_back(OptionsJson({}));
  other = info_;
  other.suite = "perplexity";
  journal.Begin(other, configurations_, options_);
  EXPECT_EQ(journal.results().runs.size(), 2u);
  EXPECT_EQ(journal.results().configurations.size(), 3u);
}

TEST_F(JournalTest, RestartDropsAndOneProcessWrites) {
  {
    Journal journal(path_);
    journal.Begin(info_, configurations_, options_);
    ExpectError<FileError>([&] { Journal second(path_); }, {"out.jsonl", "another process"},
                           __FILE__, __LINE__);
  }
  EXPECT_GT(io::ReadTextFile(path_).size(), 0u);
  { Journal journal(path_, true); }
  EXPECT_EQ(io::ReadTextFile(path_), "");
  directory_.Write("out.jsonl", "no JSON at all\n");
  ExpectError<FileError>([&] { Journal journal(path_); }, {"out.jsonl: line 1"}, __FILE__,
                         __LINE__);
  EXPECT_EQ(io::ReadTextFile(path_), "no JSON at all\n");
  ExpectError<FileError>([&] { Journal journal("/nowhere/out.jsonl"); }, {"/nowhere/out.jsonl"},
                         __FILE__, __LINE__);
  ExpectError<FileError>([&] { Journal journal(directory_.path()); }, {directory_.path().string()},
                         __FILE__, __LINE__);
}

TEST(BucketEnd, PowersOfTwoFrom1K) {
  for (const auto& [position, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1024}, {1023, 1024}, {1024, 2048}, {2047, 2048}, {2048, 4096}, {32767, 32768}}) {
    EXPECT_EQ(BucketEnd(position), end) << position;
  }
}

}  // namespace
}  // namespace litecache::eval
