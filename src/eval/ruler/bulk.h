// Training documents in bulk: a weighted mix of tasks, lengths drawn from a range, several
// questions per document, with their answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "eval/ruler/haystack.h"
#include "eval/ruler/search.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {

struct BulkOptions {
  std::vector<std::pair<std::string, double>> tasks;  // name, weight
  int64_t min_length = 1024;                          // tokens of a document,
  int64_t max_length = 4096;                          // drawn uniformly on a log scale
  int max_questions = 1;                              // uniform from 1 to this, if they fit
  uint64_t seed = 42;
  Split split = Split::kTrain;
  std::shared_ptr<const Haystack> haystack = Haystack::Default();
};

struct TrainingDocument {
  std::string task;
  int64_t index = 0;
  int64_t length = 0;  // tokens, as counted
  std::string text;
  std::vector<Span> spans;  // byte ranges of questions and answers, ascending
};

// Parses "niah_single_1:2,vt" to {{niah_single_1, 2}, {vt, 1}}; "all" is every task with weight 1,
// except the question-answering tasks, which cannot be used for training. Throws InvalidArgument.
std::vector<std::pair<std::string, double>> ParseTaskWeights(std::string_view text);

// Document i depends only on the options and i. Thread-safe.
class BulkGenerator {
 public:
  BulkGenerator(BulkOptions options, TokenCounter counter);

  TrainingDocument Make(int64_t index) const;

 private:
  struct Task {
    const TaskSpec* spec;
    double cumulative_weight;
    std::unique_ptr<TaskBuilder> builder;
    SizeGuess guess;
    double tokens_per_question;
  };

  BulkOptions options_;
  TokenCounter counter_;
  std::vector<Task> tasks_;
};

// One line of JSON: task, index, length, text, spans as [begin, end, is_answer].
std::string ToJson(const TrainingDocument& document);

}  // namespace litecache::eval
