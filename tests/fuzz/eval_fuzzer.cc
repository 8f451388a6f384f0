// The evaluation's readers. The first byte selects one of them, the rest is its file: an error, or
// samples with the fields that the header describes.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "eval/longbench/records.h"
#include "eval/ruler/questions.h"
#include "eval/task.h"

namespace {

using namespace litecache;  // NOLINT: a program of its own
using namespace litecache::eval;

void CheckSamples(std::string_view text) {
  for (const Sample& sample : ParseJsonl(text, "fuzz.jsonl")) {
    LC_CHECK(!sample.references.empty() && sample.max_new_tokens > 0 && !sample.id.empty());
    for (const std::string_view prediction : {std::string_view(sample.input), text}) {
      const double score = ScoreSample(sample, prediction);
      LC_CHECK(score >= 0 && score <= 1, "{} gives {}", sample.metric, score);
    }
    sample.metadata.dump();  // runners write it: no nesting may overflow the stack
  }
}

void CheckQuestions(const QuestionSet& set) {
  const auto documents = static_cast<int64_t>(set.documents.size());
  for (const Question& question : set.questions) {
    LC_CHECK(!question.answers.empty() && !question.documents.empty());
    for (const auto* numbers : {&question.documents, &question.related, &question.evidence}) {
      for (const int64_t number : *numbers) LC_CHECK(number >= 0 && number < documents);
    }
  }
}

void Read(uint8_t which, std::string_view text) {
  switch ((which + 2) % 5) {  // the character 0 is the first
    case 0:
      return CheckSamples(text);
    case 1:
      for (const LongBenchDataset& dataset : LongBenchDatasets()) {
        try {
          ParseLongBench(text, "fuzz.jsonl", dataset);
        } catch (const FileError&) {
        }
      }
      return;
    case 2: {
      const auto prompts = LongBenchPrompts::FromJson(text, "fuzz.json");
      LongBenchRecord record;
      record.context = "{input}";
      prompts.Render("lcc", record);
      return;
    }
    case 3:
      return CheckQuestions(ParseSquad(text, "fuzz.json"));
    default:
      return CheckQuestions(ParseHotpotQa(text, "fuzz.json"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    Read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const FileError&) {
  }
  return 0;
}
