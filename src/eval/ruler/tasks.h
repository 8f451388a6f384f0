// The tasks: their parameters and builders.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "eval/ruler/haystack.h"
#include "eval/ruler/words.h"

namespace litecache::eval {

struct QuestionSet;  // questions.h

// Number of tokens of a text under the model's tokenizer. Called from several threads at once.
using TokenCounter = std::function<int64_t(std::string_view)>;

enum class Family { kNeedle, kVariables, kCommonWords, kFrequentWords, kQuestions };
enum class Surroundings { kNoise, kEssay, kNeedles };

struct TaskSpec {
  std::string_view name;
  Family family;
  int max_new_tokens;
  // Needle tasks only: keys inserted, values per key, keys asked for.
  Surroundings surroundings = Surroundings::kNoise;
  Vocabulary keys = Vocabulary::kWords;
  Vocabulary values = Vocabulary::kNumbers;
  int num_keys = 1;
  int num_values = 1;
  int num_queries = 1;
  std::string_view metric = "string_match_all";  // a name in metrics.h
};

// The thirteen tasks in RULER's order.
const std::vector<TaskSpec>& TaskSpecs();
std::vector<std::string_view> TaskNames();
// Throws an InvalidArgument that lists the names.
const TaskSpec& FindTask(std::string_view name);
// Whether a task needs a file of questions (questions.h).
inline bool NeedsQuestions(const TaskSpec& spec) { return spec.family == Family::kQuestions; }

// A byte range of a text with a needle, or, for qa_*, a document with the answer. depth: its start
// as a share of the context, 0 to 1.
struct Needle {
  int64_t begin;
  int64_t end;
  double depth;
};

// A byte range of a training text that is a question (with its answer prefix) or an answer.
struct Span {
  int64_t begin;
  int64_t end;
  bool is_answer;
};

struct BuildRequest {
  uint64_t seed = 0;
  // Index of the sample; also selects the question in tasks with a list of questions.
  int64_t index = 0;
  int64_t size = 0;       // units of haystack; each builder defines its unit
  int64_t length = 0;     // target length in tokens, on which some parameters depend
  bool training = false;  // answers follow the questions; essay windows begin anywhere
  int questions = 1;      // training only; cwe and fwe always have one
};

struct Draft {
  std::string text;
  std::string answer_prefix;
  std::vector<std::string> outputs;
  std::vector<Needle> needles;
  std::vector<Span> spans;  // training only
};

// Makes a text of a given size. Equal requests give equal texts, and a larger size only adds to the
// text, so that the size for a length can be searched. Thread-safe.
class TaskBuilder {
 public:
  virtual ~TaskBuilder() = default;
  // The smallest useful size, and the largest one that the material allows.
  virtual int64_t MinSize(const BuildRequest& request) const = 0;
  virtual int64_t MaxSize(const BuildRequest& request) const;
  virtual Draft Build(const BuildRequest& request) const = 0;
};

std::unique_ptr<TaskBuilder> MakeNeedleBuilder(const TaskSpec& spec, Split split,
                                               std::shared_ptr<const Haystack> haystack);
std::unique_ptr<TaskBuilder> MakeVariablesBuilder(Split split, const TokenCounter& counter);
std::unique_ptr<TaskBuilder> MakeCommonWordsBuilder(Split split);
std::unique_ptr<TaskBuilder> MakeFrequentWordsBuilder(Split split);
// Throws InvalidArgument for the split train, FileError (where to get them) without questions.
std::unique_ptr<TaskBuilder> MakeQuestionBuilder(const TaskSpec& spec, Split split,
                                                 std::shared_ptr<const QuestionSet> questions);

// Input data of some tasks.
struct Materials {
  std::shared_ptr<const Haystack> haystack;      // for the essay tasks
  std::shared_ptr<const QuestionSet> questions;  // for qa_*
};

std::unique_ptr<TaskBuilder> MakeBuilder(const TaskSpec& spec, Split split, Materials materials,
                                         const TokenCounter& counter);

// RULER's filler line.
inline constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// "a", "a, and b", "a, b, and c".
std::string Enumerate(const std::vector<std::string>& items);

}  // namespace litecache::eval
