// Aggregates of predictions and windows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/report/table.h"
#include "eval/run/results.h"

namespace litecache::eval {

struct Answer {
  double score = 0;
  uint64_t text = 0;  // hash
};
// Answers of one task at one length under one configuration, by sample.
using Answers = std::map<std::string, Answer>;

// Predictions of one length.
struct LengthSummary {
  int64_t length = 0;
  std::vector<std::string> tasks;  // in the order of the first prediction
  std::map<std::string, std::map<std::string, Answers>> answers;    // [configuration][task]
  std::map<std::string, std::map<std::string, DraftStats>> drafts;  // the same; if there are any
  struct Totals {
    KvSums kv;
    double generated = 0, decode_seconds = 0;
    int64_t samples = 0;
  };
  std::map<std::string, Totals> totals;  // [configuration]

  // Mean score, 0 to 1; nullopt without samples.
  std::optional<double> Task(const std::string& configuration, const std::string& task) const;
  // Mean over the tasks' means.
  std::optional<double> Average(const std::string& configuration) const;
  // The average minus that of `reference`, over the samples that both have.
  std::optional<double> Difference(const std::string& configuration,
                                   const std::string& reference) const;
  // The share of those samples whose answers are the same text.
  std::optional<double> Agreement(const std::string& configuration, const std::string& task,
                                  const std::string& reference) const;
};

// Windows of one configuration at one length, or in one bucket of positions.
struct WindowSummary {
  int64_t windows = 0;
  int64_t tokens = 0;
  double nll = 0;  // sums
  double kl = 0;
  double same_top = 0;
  std::vector<float> kls;
  KvSums kv;

  void Add(const Window& window, size_t token);
  double Perplexity() const;
  double MeanKl() const { return kls.empty() ? 0 : kl / static_cast<double>(kls.size()); }
  // The value below which `share` of the tokens lie.
  double KlQuantile(double share) const;
  double SameTop() const { return kls.empty() ? 1 : same_top / static_cast<double>(kls.size()); }
};

struct Summary {
  std::vector<std::string> configurations;  // those with results, in the order of the file
  std::vector<LengthSummary> lengths;       // ascending
  std::map<int64_t, std::map<std::string, WindowSummary>> windows;  // [length][configuration]
  std::map<int64_t, std::map<std::string, WindowSummary>> buckets;  // [end of the positions]
  // [end of the positions]: full attention, processed as a prompt.
  std::map<int64_t, WindowSummary> prompt;
  std::map<std::string, HeadTable> heads;  // [configuration], summed over lengths
};

// Throws InvalidArgument for results of different models, or of one configuration with different
// options.
Summary Summarize(const Results& results);

// All tables, in the order of a report.
std::vector<Table> MakeTables(const Summary& summary);

}  // namespace litecache::eval
