// LongBench's files: records of questions and contexts, and the prompt formats.
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
  std::vector<std::string> classes;  // for classification
  int64_t words = 0;                 // "length" in the file: words, or characters of Chinese
  std::string language;
  std::string id;     // "_id"
  std::string where;  // "FILE:LINE"
};

// Parses the lines of DATASET.jsonl. Throws a FileError that names line and field; `name` is the
// path in messages.
std::vector<LongBenchRecord> ParseLongBench(std::string_view text, const std::string& name,
                                            const LongBenchDataset& dataset);

// dataset2prompt.json: an object with one format per dataset, with the fields {context} and
// {input}, and {{, }} for braces. The formats are part of the benchmark and are read from its file.
class LongBenchPrompts {
 public:
  // Throws FileError for malformed JSON, or a value that is not a format of context and input.
  static LongBenchPrompts FromJson(std::string_view json, const std::string& name);

  // Throws FileError if the file has no format for `dataset`.
  std::string Render(std::string_view dataset, const LongBenchRecord& record) const;

 private:
  std::string name_;
  std::map<std::string, std::string, std::less<>> formats_;
};

}  // namespace litecache::eval
