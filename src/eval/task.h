// What every suite of the evaluation deals in: a prompt, the answers that count, and the metric
// that counts them. A suite makes samples, the runner asks a model, metrics.h scores.
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
  std::string task;  // what results are grouped by: "niah_single_1", "hotpotqa"
  // The user's side of the conversation. UTF-8.
  std::string input;
  // What the assistant's answer starts with; may be empty. It follows the chat template's
  // generation prompt, or, without a template, `input` directly.
  std::string answer_prefix;
  // False: the prompt is put to the model as it is even where the model has a chat template
  // (LongBench's few-shot and code tasks).
  bool chat_template = true;
  std::vector<std::string> references;
  std::vector<std::string> classes;  // of classification: every label there is
  int64_t max_new_tokens = 0;
  std::string metric;  // a name of MetricNames()
  int64_t length = 0;  // tokens aimed at, prompt and answer together; 0: unknown
  // Further facts for tables and charts, an object: "depths" ([0, 1], one a needle), "index",
  // "seed", "language", ...
  nlohmann::ordered_json metadata = nlohmann::ordered_json::object();
};

// 0 to 1; what the sample's metric says of a prediction. Throws InvalidArgument as Score() does.
double ScoreSample(const Sample& sample, std::string_view prediction);

// A file of samples, one JSON object a line, as `litecache eval generate` writes them. Fields:
//   input            string, required; where it ends in answer_prefix, that end is cut off
//   outputs          strings (or one string), required, at least one: the answers that count
//   max_new_tokens   integer from 1, required
//   metric           a metric's name; default string_match_all
//   task             string; default: the file's name without its extension
//   answer_prefix    string; default: empty
//   classes          strings, required where the metric is one of classification
//   length, index    integers; `id` (string): default task/index, or task/line where that is absent
//   chat_template    true or false; default true
// Every other field goes into `metadata` as it is. Empty lines are skipped. Throws FileError that
// names file, line and field: unreadable file, malformed JSON, missing or wrongly typed fields, an
// unknown metric, an id that occurs twice, no samples at all.
std::vector<Sample> LoadJsonl(const std::filesystem::path& path);

// The same from text; `name` stands for the path in messages.
std::vector<Sample> ParseJsonl(std::string_view text, const std::string& name);

}  // namespace litecache::eval
