// LongBench (Bai et al., 2023), read from its authors' files: 21 datasets of questions, summaries,
// few-shot examples, synthetic tasks and code about long texts.
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
  std::string_view metric;  // a name in metrics.h
  int max_new_tokens;
  // False: the original prompts chat models without their template.
  bool chat_template;
  bool in_e;  // also part of LongBench-E, as NAME_e
};

// The 21 datasets in the original order.
const std::vector<LongBenchDataset>& LongBenchDatasets();
std::vector<std::string_view> LongBenchNames();
// Finds "hotpotqa", or "hotpotqa_e" of LongBench-E. Throws an InvalidArgument that lists the names.
const LongBenchDataset& FindLongBench(std::string_view name);

struct LongBenchOptions {
  // Contains DATASET.jsonl, and the original prompts as dataset2prompt.json; both may also be in
  // the subfolders in which they are published: data/, config/, LongBench/config/.
  std::filesystem::path directory;
  // Names; {"all"} means all 21, {"all_e"} the 13 of LongBench-E.
  std::vector<std::string> datasets = {"all"};
  // Tokens of prompt and answer together; longer prompts are cut in the middle.
  int64_t max_length = 0;
  int64_t reserved = 0;  // of these, for a chat template
  int64_t count = 0;     // samples per dataset; 0: all
  int64_t start = 0;     // index of the first one
};

// The samples, in the order of the files. A prompt with too many tokens keeps its first and its
// last half, cut and joined as text, as in the original. Id: "DATASET/INDEX"; length: max_length;
// metadata: "index", "_id", "language", "words" (the length given in the file), "tokens" (of the
// prompt, without template), "truncated". Throws a FileError that names file, line and field, or
// for a missing file says where to get it and where to put it; InvalidArgument for an unknown
// dataset or lengths that leave no room.
//
// Differences from the original: there, the generation of samsum's answers stops at the first
// newline (in both, the score uses the first line); there, each model family of 2023 has a template
// in code, while this uses the model's own.
// a template in code there, here the model's own is used.
std::vector<Sample> LoadLongBench(const LongBenchOptions& options,
                                  const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::eval
