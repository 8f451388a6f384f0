#include "eval/ruler/tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/error.h"

namespace litecache::eval {

const std::vector<TaskSpec>& TaskSpecs() {
  using enum Family;
  using enum Surroundings;
  using enum Vocabulary;
  static const std::vector<TaskSpec> specs = {
      {"niah_single_1", kNeedle, 128, kNoise, kWords, kNumbers, 1, 1, 1},
      {"niah_single_2", kNeedle, 128, kEssay, kWords, kNumbers, 1, 1, 1},
      {"niah_single_3", kNeedle, 128, kEssay, kWords, kUuids, 1, 1, 1},
      {"niah_multikey_1", kNeedle, 128, kEssay, kWords, kNumbers, 4, 1, 1},
      {"niah_multikey_2", kNeedle, 128, kNeedles, kWords, kNumbers, 1, 1, 1},
      {"niah_multikey_3", kNeedle, 128, kNeedles, kUuids, kUuids, 1, 1, 1},
      {"niah_multivalue", kNeedle, 128, kEssay, kWords, kNumbers, 1, 4, 1},
      {"niah_multiquery", kNeedle, 128, kEssay, kWords, kNumbers, 4, 1, 4},
      {"vt", kVariables, 30},
      {"cwe", kCommonWords, 120},
      {"fwe", kFrequentWords, 50},
      {.name = "qa_1", .family = kQuestions, .max_new_tokens = 32, .metric = "string_match_part"},
      {.name = "qa_2", .family = kQuestions, .max_new_tokens = 32, .metric = "string_match_part"},
  };
  return specs;
}

std::vector<std::string_view> TaskNames() {
  std::vector<std::string_view> names;
  for (const TaskSpec& spec : TaskSpecs()) names.push_back(spec.name);
  return names;
}

const TaskSpec& FindTask(std::string_view name) {
  for (const TaskSpec& spec : TaskSpecs()) {
    if (spec.name == name) return spec;
  }
  throw InvalidArgument("there is no task '{}'; there are {}", name, fmt::join(TaskNames(), ", "));
}

// A unit has at least one token; frequent words lose some of theirs to rounding.
int64_t TaskBuilder::MaxSize(const BuildRequest& request) const { return 2 * request.length + 64; }

std::unique_ptr<TaskBuilder> MakeBuilder(const TaskSpec& spec, Split split, Materials materials,
                                         const TokenCounter& counter) {
  switch (spec.family) {
    case Family::kNeedle:
      return MakeNeedleBuilder(spec, split, std::move(materials.haystack));
    case Family::kVariables:
      return MakeVariablesBuilder(split, counter);
    case Family::kCommonWords:
      return MakeCommonWordsBuilder(split);
    case Family::kFrequentWords:
      return MakeFrequentWordsBuilder(split);
    case Family::kQuestions:
      return MakeQuestionBuilder(spec, split, std::move(materials.questions));
  }
  return nullptr;
}

std::string Enumerate(const std::vector<std::string>& items) {
  if (items.size() == 1) return items[0];
  std::string text;
  for (size_t i = 0; i + 1 < items.size(); ++i) text += items[i] + ", ";
  return text + "and " + items.back();
}

}  // namespace litecache::eval
