// The samples of the suites, grouped by length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/ruler/run.h"
#include "eval/run/generation.h"
#include "tokenizer/tokenizer.h"

namespace litecache::eval {

struct SuiteOptions {
  std::vector<std::string> tasks = {"all"};
  std::vector<int64_t> lengths;
  int64_t count = 0;  // samples per task; 0: 25 for RULER, all for LongBench and files
  uint64_t seed = 42;
  std::shared_ptr<const Haystack> haystack = Haystack::Default();
  std::filesystem::path data;  // directory of LongBench's files
  std::string qa_data;         // directory of RULER's questions; empty: "all" excludes their tasks
  // Tokens that a chat template adds to a prompt: RULER's prompts are shorter by that number.
  int64_t overhead = 0;
  std::function<void(const std::string&)> note;  // a message to the user
};

// Tasks named by the user are built once at every length first, to report errors early; of "all",
// tasks that are impossible at a length are skipped with a note. Throws what Generator throws.
std::vector<SampleGroup> RulerGroups(const SuiteOptions& options,
                                     std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

// Throws what LoadLongBench throws.
std::vector<SampleGroup> LongBenchGroups(
    const SuiteOptions& options, const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer);

// Samples of a file, grouped by length rounded up to a power of two: the length in the file, else
// that of prompt and answer. Throws what LoadJsonl throws; InvalidArgument for a task that is not
// in the file and for a sample longer than `max_context`.
std::vector<SampleGroup> FileGroups(const std::filesystem::path& path, const SuiteOptions& options,
                                    const PromptEncoder& encode, int64_t max_context);

}  // namespace litecache::eval
