// The suites' samples, grouped by length.
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
  int64_t count = 0;  // samples a task; 0: 25 of RULER, all of LongBench and of files
  uint64_t seed = 42;
  std::shared_ptr<const Haystack> haystack = Haystack::Default();
  std::filesystem::path data;  // LongBench's files
  std::string qa_data;         // RULER's questions; empty: "all" leaves their tasks out
  // Tokens that a chat template puts around a prompt: RULER's prompts are shorter by them.
  int64_t overhead = 0;
  std::function<void(const std::string&)> note;  // a line for people
};

// Tasks named by the user are tried at every length at once; of "all", those that a length
// rules out are left out with a note. Throws what Generator throws.
std::vector<SampleGroup> RulerGroups(const SuiteOptions& options,
                                     std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

// Throws what LoadLongBench throws.
std::vector<SampleGroup> LongBenchGroups(
    const SuiteOptions& options, const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer);

// Samples of a file, grouped by the next power of two of their length: the one the file names, else
// that of prompt and answer. Throws what LoadJsonl throws; InvalidArgument for a task that the file
// does not have and for a sample longer than `max_context`.
std::vector<SampleGroup> FileGroups(const std::filesystem::path& path, const SuiteOptions& options,
                                    const PromptEncoder& encode, int64_t max_context);

}  // namespace litecache::eval
