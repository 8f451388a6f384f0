// Writes generated samples, in order, from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "eval/ruler/bulk.h"
#include "eval/ruler/ruler.h"

namespace litecache::eval {

struct GenerateOptions {
  std::vector<std::string> tasks;  // names, or {"all"}: see ExpandTasks()
  int64_t length = 4096;
  int64_t count = 1;  // per task
  int64_t start = 0;  // first index, to resume or to split work
  uint64_t seed = 42;
  Split split = Split::kTest;
  std::shared_ptr<const Haystack> haystack = Haystack::Default();
  // Directory with the questions of qa_1 and qa_2 (questions.h).
  std::string qa_data;
  int threads = 0;  // <= 0: one per core
};

// The names with {"all"} expanded: every task, the question-answering tasks only if their directory
// is set. Throws InvalidArgument for unknown names and an empty list.
std::vector<std::string> ExpandTasks(const GenerateOptions& options);

// The generator of one of the tasks. Throws what Generator and LoadQuestions throw.
Generator MakeGenerator(const std::string& task, const GenerateOptions& options,
                        const TokenCounter& counter);

// Writes `count` JSON lines per task. Shows a progress bar on a terminal. Throws what Generator
// throws, and FileError if the output cannot be written. Returns the number of lines.
int64_t RunGenerate(const GenerateOptions& options, const TokenCounter& counter,
                    std::ostream& output);

// Writes `count` training documents from index `start` on, each formatted by `format` (ToJson by
// default).
int64_t RunBulk(const BulkOptions& options, int64_t start, int64_t count, int threads,
                const TokenCounter& counter, std::ostream& output,
                const std::function<std::string(const TrainingDocument&)>& format = {});

}  // namespace litecache::eval
