#include "eval/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "eval/jsonl.h"
#include "io/file.h"
#include "io/json.h"

namespace litecache::eval {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;

std::vector<std::string> Outputs(const io::JsonFields& fields) {
  const nlohmann::json* value = fields.Find("outputs");
  if (value != nullptr && value->is_string()) return {value->get<std::string>()};
  return fields.RequiredStrings("outputs");
}

Sample ReadSample(const JsonLine& line, const std::string& stem) {
  const io::JsonFields fields(line.value, line.where);
  Sample sample;
  sample.task = fields.String("task").value_or(stem);
  sample.input = fields.RequiredString("input");
  sample.answer_prefix = fields.String("answer_prefix").value_or("");
  if (!sample.answer_prefix.empty() && sample.input.ends_with(sample.answer_prefix)) {
    sample.input.resize(sample.input.size() - sample.answer_prefix.size());
  }
  sample.references = Outputs(fields);
  if (sample.references.empty()) fields.Fail("outputs", "must hold an answer at least");
  sample.classes = fields.Strings("classes").value_or(std::vector<std::string>());
  sample.max_new_tokens = fields.RequiredInt("max_new_tokens", 1, kMostTokens);
  sample.metric = fields.String("metric").value_or("string_match_all");
  const auto metrics = MetricNames();
  if (std::find(metrics.begin(), metrics.end(), sample.metric) == metrics.end()) {
    fields.Fail("metric", fmt::format("must be one of {}", fmt::join(metrics, ", ")));
  }
  if (NeedsClasses(sample.metric) && sample.classes.empty()) {
    fields.Fail("classes", "must list the labels, which the metric " + sample.metric + " needs");
  }
  sample.chat_template = fields.Bool("chat_template").value_or(true);
  sample.length = fields.Int("length", 0, kMostTokens).value_or(0);
  const auto index = fields.Int("index", std::numeric_limits<int64_t>::min(), kMostTokens);
  sample.id =
      fields.String("id").value_or(fmt::format("{}/{}", sample.task, index.value_or(line.line)));
  static const std::set<std::string_view> known = {
      "id",      "task",           "input",  "answer_prefix", "outputs",
      "classes", "max_new_tokens", "metric", "chat_template", "length"};
  for (const auto& [key, value] : line.value.items()) {
    if (known.count(key) == 0) sample.metadata[key] = value;
  }
  // A metric may parse its references ("Paragraph 12"): errors are reported before the model runs.
  try {
    ScoreSample(sample, "");
  } catch (const InvalidArgument& error) {
    fields.Fail("outputs", error.what());
  }
  return sample;
}

}  // namespace

double ScoreSample(const Sample& sample, std::string_view prediction) {
  return Score(sample.metric, prediction, sample.references, sample.classes);
}

std::vector<Sample> ParseJsonl(std::string_view text, const std::string& name) {
  const std::string stem = std::filesystem::path(name).stem().string();
  std::vector<Sample> samples;
  std::set<std::string> ids;
  ForEachJsonLine(text, name, [&](const JsonLine& line) {
    samples.push_back(ReadSample(line, stem));
    if (!ids.insert(samples.back().id).second) {
      throw FileError("{}: field 'id': '{}' occurs twice", line.where, samples.back().id);
    }
  });
  if (samples.empty()) throw FileError("{}: holds no samples", name);
  return samples;
}

std::vector<Sample> LoadJsonl(const std::filesystem::path& path) {
  return ParseJsonl(io::ReadTextFile(path), path.string());
}

}  // namespace litecache::eval
