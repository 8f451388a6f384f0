// RULER's thirteen long-context tasks (Hsieh et al., 2024), generated for a length in the model's
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "eval/ruler/haystack.h"
#include "eval/ruler/search.h"
#include "eval/ruler/tasks.h"
#include "eval/ruler/words.h"

namespace litecache::eval {

struct TaskOptions {
  std::string task;       // one of TaskNames()
  int64_t length = 4096;  // tokens of prompt and answer together
  uint64_t seed = 42;
  Split split = Split::kTest;
  std::shared_ptr<const Haystack> haystack = Haystack::Default();  // for the essay tasks
  std::shared_ptr<const QuestionSet> questions = nullptr;          // for the qa tasks
};

struct RulerSample {
  std::string task;
  int64_t index = 0;
  uint64_t seed = 0;
  Split split = Split::kTest;
  // Tokens of `input` plus max_new_tokens; at most the requested length.
  int64_t length = 0;
  int max_new_tokens = 0;
  std::string metric;  // a name in metrics.h
  // The prompt; it ends with `answer_prefix`, which belongs to the assistant's turn in a chat
  // template.
  std::string input;
  std::string answer_prefix;
  std::vector<std::string> outputs;
  // niah_*: the needles; vt: the assignments of the chain; qa_*: the documents with the answer.
  std::vector<Needle> needles;
};

// Generates the samples of one task. Sample i depends only on (task, length, seed, split, i), the
// haystack and the tokenizer, so samples can be made in any order and by several threads at once.
class Generator {
 public:
  // Throws InvalidArgument for an unknown task (listing the tasks) or a length that is too short
  // (giving the shortest).
  Generator(TaskOptions options, TokenCounter counter);

  RulerSample Make(int64_t index) const;

  const TaskSpec& spec() const { return spec_; }

 private:
  TaskOptions options_;
  TokenCounter counter_;
  const TaskSpec& spec_;
  std::unique_ptr<TaskBuilder> builder_;
  SizeGuess guess_;
};

// One line of JSON without the newline: task, index, seed, split, length, max_new_tokens, metric,
// input, outputs, answer_prefix, depths (of the needles, 0 to 1).
std::string ToJson(const RulerSample& sample);

}  // namespace litecache::eval
