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
  bool in_e;  // LongBench-E has it too, as NAME_e
};

// The 21 datasets in the original's order.
const std::vector<LongBenchDataset>& LongBenchDatasets();
std::vector<std::string_view> LongBenchNames();
// "hotpotqa", or "hotpotqa_e" of LongBench-E. Throws InvalidArgument listing the names.
const LongBenchDataset& FindLongBench(std::string_view name);

struct LongBenchOptions {
  // Holds DATASET.jsonl, and the prompts of the original as dataset2prompt.json; both may also
  // stand in the subfolders in which they are published: data/, config/, LongBench/config/.
  std::filesystem::path directory;
  // Names; {"all"} is all 21, {"all_e"} the 13 of LongBench-E.
  std::vector<std::string> datasets = {"all"};
  int64_t max_length = 0;  // tokens of prompt and answer together; longer prompts lose their middle
  int64_t reserved = 0;    // of these, for a chat template
  int64_t count = 0;       // samples a dataset; 0: all
  int64_t start = 0;       // index of the first
};

// The samples, in the files' order. A prompt of more tokens than there is room for keeps its first
// and its last half, cut and joined as text, as in the original. Id: "DATASET/INDEX"; length:
// max_length; metadata: "index", "_id", "language", "words" (the length the file names), "tokens"
// (of the prompt, without template), "truncated". Throws FileError that names file, line and field,
// and for a missing file where to get it and where to put it; InvalidArgument for an unknown
// dataset or lengths that leave no room.
//
// What the original does beside this and this does not: samsum's answers end at the first newline
// there, while generating (its score is of the first line, here too); each model family of 2023 has
// a template in code there, here the model's own is used.
std::vector<Sample> LoadLongBench(const LongBenchOptions& options,
                                  const tokenizer::Tokenizer& tokenizer);

}  // namespace litecache::eval
