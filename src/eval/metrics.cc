#include "eval/metrics.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "eval/longbench/metrics.h"
#include "eval/longbench/rouge.h"
#include "eval/python_text.h"
#include "tokenizer/utf8.h"

namespace litecache::eval {
namespace {

int64_t CountContained(std::string_view prediction, const std::vector<std::string>& references) {
  if (references.empty()) throw InvalidArgument("a sample without references cannot be scored");
  const std::string text = ToLower(tokenizer::RepairUtf8(prediction));
  return std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return text.find(ToLower(tokenizer::RepairUtf8(reference))) != std::string::npos;
  });
}

using Strings = std::vector<std::string>;

struct Metric {
  std::string_view name;
  double (*score)(std::string_view prediction, const Strings& references, const Strings& classes);
};

// The best value over the references, for a metric that takes one reference.
template <double (*kMetric)(std::string_view, std::string_view)>
double Best(std::string_view prediction, const Strings& references, const Strings&) {
  double best = 0;
  for (const std::string& reference : references) {
    best = std::max(best, kMetric(prediction, tokenizer::RepairUtf8(reference)));
  }
  return best;
}

// LongBench scores only the first line in its few-shot tasks, because models continue with further
// examples.
template <double (*kMetric)(std::string_view, std::string_view)>
double BestOfFirstLine(std::string_view prediction, const Strings& references,
                       const Strings& none) {
  return Best<kMetric>(FirstLine(prediction), references, none);
}

double BestClassification(std::string_view prediction, const Strings& references,
                          const Strings& classes) {
  double best = 0;
  for (const std::string& reference : references) {
    best = std::max(best, Classification(FirstLine(prediction), reference, classes));
  }
  return best;
}

constexpr Metric kMetrics[] = {
    {"string_match_all",
     [](std::string_view prediction, const Strings& references, const Strings&) {
       return StringMatchAll(CleanPrediction(prediction), references);
     }},
    {"string_match_part",
     [](std::string_view prediction, const Strings& references, const Strings&) {
       return StringMatchPart(CleanPrediction(prediction), references);
     }},
    {"qa_f1", Best<QaF1>},
    {"qa_f1_first_line", BestOfFirstLine<QaF1>},
    {"qa_f1_zh_chars", Best<QaF1ChineseCharacters>},
    {"rouge_l", Best<RougeL>},
    {"rouge_l_first_line", BestOfFirstLine<RougeL>},
    {"rouge_l_zh_chars", Best<RougeLChineseCharacters>},
    {"classification", BestClassification},
    {"retrieval", Best<Retrieval>},
    {"retrieval_zh", Best<RetrievalChinese>},
    {"count", Best<Count>},
    {"code_similarity", Best<CodeSimilarity>},
};

}  // namespace

double StringMatchAll(std::string_view prediction, const std::vector<std::string>& references) {
  return static_cast<double>(CountContained(prediction, references)) /
         static_cast<double>(references.size());
}

double StringMatchPart(std::string_view prediction, const std::vector<std::string>& references) {
  return CountContained(prediction, references) > 0 ? 1 : 0;
}

std::vector<std::string_view> MetricNames() {
  std::vector<std::string_view> names;
  for (const Metric& metric : kMetrics) names.push_back(metric.name);
  return names;
}

bool NeedsClasses(std::string_view metric) { return metric == "classification"; }

double Score(std::string_view metric, std::string_view prediction,
             const std::vector<std::string>& references, const std::vector<std::string>& classes) {
  const auto* const found = std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                         [&](const Metric& m) { return m.name == metric; });
  if (found == std::end(kMetrics)) {
    throw InvalidArgument("metric '{}' is none of {}", metric, fmt::join(MetricNames(), ", "));
  }
  if (references.empty()) throw InvalidArgument("a sample without references cannot be scored");
  return found->score(tokenizer::RepairUtf8(prediction), references, classes);
}

std::string CleanPrediction(std::string_view prediction) {
  std::string text = tokenizer::RepairUtf8(prediction);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '\n';
  }
  return std::string(Strip(text));
}

}  // namespace litecache::eval
