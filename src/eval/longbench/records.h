// LongBench's files: records of questions and contexts, and the prompts to put them into.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "eval/longbench/longbench.h"

namespace litecache::eval {

struct LongBenchRecord {
  std::string input;    // the question; may be empty (summaries)
  std::string context;  // the long text
  std::vector<std::string> answers;
  std::vector<std::string> classes;  // of classification
  int64_t words = 0;                 // "length" in the file: words, or characters of Chinese
  std::string language;
  std::string id;     // "_id"
  std::string where;  // "FILE:LINE"
};

// The lines of DATASET.jsonl. Throws FileError naming line and field; `name` stands for the path.
std::vector<LongBenchRecord> ParseLongBench(std::string_view text, const std::string& name,
                                            const LongBenchDataset& dataset);

// dataset2prompt.json: an object of a format for every dataset, with {context} and {input} in it
// and {{, }} for braces. They are the benchmark's data and are read from its own file.
class LongBenchPrompts {
 public:
  // Throws FileError: malformed, or a value that is no format of context and input.
  static LongBenchPrompts FromJson(std::string_view json, const std::string& name);

  // Throws FileError where the file has no format for `dataset`.
  std::string Render(std::string_view dataset, const LongBenchRecord& record) const;

 private:
  std::string name_;
  std::map<std::string, std::string, std::less<>> formats_;
};

}  // namespace litecache::eval
