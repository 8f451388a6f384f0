// The common format of all suites: a prompt, the accepted answers, and the metric that scores them.
// A suite makes samples, the runner prompts a model, metrics.h scores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "eval/metrics.h"

namespace litecache::eval {

struct Sample {
  std::string id;    // unique within its suite and length: "niah_single_1/17"
  std::string task;  // the group of its results: "niah_single_1", "hotpotqa"
  // The user's turn of the conversation. UTF-8.
  std::string input;
  // The beginning of the assistant's answer; may be empty. It follows the chat template's
  // generation prompt, or, without a template, `input` directly.
  std::string answer_prefix;
  // False: the prompt is used without the model's chat template (LongBench's few-shot and code
  // tasks).
  bool chat_template = true;
  std::vector<std::string> references;
  std::vector<std::string> classes;  // for classification: all labels
  int64_t max_new_tokens = 0;
  std::string metric;  // one of MetricNames()
  int64_t length = 0;  // target length in tokens, prompt and answer together; 0: unknown
  // An object with further facts for tables and charts: "depths" ([0, 1], one per needle), "index",
  // "seed", "language", ...
  nlohmann::ordered_json metadata = nlohmann::ordered_json::object();
};

// The value of the sample's metric for a prediction, 0 to 1. Throws InvalidArgument as Score()
// does.
double ScoreSample(const Sample& sample, std::string_view prediction);

// Loads a file of samples with one JSON object per line, as `litecache eval generate` writes them.
// Fields:
//   input            string, required; a trailing answer_prefix is removed
//   outputs          strings (or one string), required, at least one: the accepted answers
//   max_new_tokens   integer from 1, required
//   metric           a metric's name; default string_match_all
//   task             string; default: the file's name without its extension
//   answer_prefix    string; default: empty
//   classes          strings, required for metrics of classification
//   length, index    integers; `id` (string): default task/index, or without index task/line
//   chat_template    true or false; default true
// All other fields are copied to `metadata`. Empty lines are skipped. Throws a FileError that names
// file, line and field: unreadable file, malformed JSON, missing or wrongly typed fields, an
// unknown metric, a duplicate id, no samples at all.
std::vector<Sample> LoadJsonl(const std::filesystem::path& path);

// The same from text; `name` is the path in messages.
std::vector<Sample> ParseJsonl(std::string_view text, const std::string& name);

}  // namespace litecache::eval
