// LongBench (Bai et al., 2023) from the files its authors publish: 21 datasets of questions,
// summaries, few-shot examples, synthetic tasks and code about long texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"
#include "tokenizer/tokenizer.h"

namespace litecache::eval {

struct LongBenchDataset {
  std::string_view name;
  std::string_view metric;  // of metrics.h
  int max_new_tokens;
  // False: the original puts the prompt to chat models without their template.
  bool chat_template;
};

// The 21 datasets in the original's order.
const std::vector<LongBenchDataset>& LongBenchDatasets();
std::vector<std::string_view> LongBenchNames();
// "hotpotqa", or "hotpotqa_e" of LongBench-E. Throws InvalidArgument listing the names.
const LongBenchDataset& FindLongBench(std::string_view name);

struct LongBenchOptions {
  // Holds DATASET.jsonl, and the prompts of the original as dataset2prompt.json; both may also
  // stand in the subfolders in which they are published (data/, config/, LongBench/config/).
  std::filesystem::path directory;
  std::vector<std::string> datasets = {"all"};  // names, or {"all"}
  int64_t max_length = 0;  // tokens of prompt and answer together; longer prompts lose their middle
  int64_t count = 0;       // samples a dataset, from the first on; 0: all
  int64_t start = 0;
};

// The samples, in the files' order. A prompt of more than max_length - max_new_tokens tokens keeps
// its first and its last half of that many, cut and joined as text, as in the original. metadata:
// "language", "words" (the length the file names), "truncated". Throws FileError that names file,
// line and field, and for a missing file where to get it and where to put it; InvalidArgument for
// an unknown dataset or a max_length too short for an answer.
std::vector<Sample> LoadLongBench(const LongBenchOptions& options,
                                  const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::eval
