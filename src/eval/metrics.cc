#include "eval/metrics.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace litecache::eval {
namespace {

std::string Lower(std::string_view text) {
  const std::string valid = tokenizer::RepairUtf8(text);
  std::string lower;
  lower.reserve(valid.size());
  for (size_t i = 0; i < valid.size();) {
    tokenizer::AppendLower(tokenizer::NextCodePoint(valid, &i), &lower);
  }
  return lower;
}

int64_t CountContained(std::string_view prediction, const std::vector<std::string>& references) {
  if (references.empty()) throw InvalidArgument("a sample without references cannot be scored");
  const std::string text = Lower(prediction);
  return std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return text.find(Lower(reference)) != std::string::npos;
  });
}

}  // namespace

double StringMatchAll(std::string_view prediction, const std::vector<std::string>& references) {
  return static_cast<double>(CountContained(prediction, references)) /
         static_cast<double>(references.size());
}

double StringMatchPart(std::string_view prediction, const std::vector<std::string>& references) {
  return CountContained(prediction, references) > 0 ? 1 : 0;
}

std::vector<std::string_view> MetricNames() { return {"string_match_all", "string_match_part"}; }

double Score(std::string_view metric, std::string_view prediction,
             const std::vector<std::string>& references, const std::vector<std::string>&) {
  if (metric == "string_match_all") return StringMatchAll(prediction, references);
  if (metric == "string_match_part") return StringMatchPart(prediction, references);
  throw InvalidArgument("metric '{}' is none of {}", metric, fmt::join(MetricNames(), ", "));
}

std::string CleanPrediction(std::string_view prediction) {
  std::string text(prediction);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '\n';
  }
  const auto blank = [](char c) { return c == ' ' || c == '\n'; };
  text.erase(std::find_if_not(text.rbegin(), text.rend(), blank).base(), text.end());
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
  return text;
}

}  // namespace litecache::eval
