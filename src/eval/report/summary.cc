#include "eval/report/summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "eval/longbench/longbench.h"
#include "eval/ruler/tasks.h"

namespace litecache::eval {
namespace {

// The answers of a configuration to a task; nullptr without any.
const Answers* Of(const std::map<std::string, std::map<std::string, Answers>>& all,
                  const std::string& configuration, const std::string& task) {
  const auto of = all.find(configuration);
  if (of == all.end()) return nullptr;
  const auto found = of->second.find(task);
  return found == of->second.end() ? nullptr : &found->second;
}

// The mean of value(mine, theirs) over the samples that both have.
template <class Value>
std::optional<double> MeanOfShared(const Answers* mine, const Answers* theirs, const Value& value) {
  if (mine == nullptr || theirs == nullptr) return std::nullopt;
  double sum = 0;
  int64_t shared = 0;
  for (const auto& [id, answer] : *mine) {
    const auto same = theirs->find(id);
    if (same == theirs->end()) continue;
    sum += value(answer, same->second);
    ++shared;
  }
  if (shared == 0) return std::nullopt;
  return sum / static_cast<double>(shared);
}

void CheckComparable(const Results& results) {
  for (const RunInfo& run : results.runs) {
    const RunInfo& first = results.runs.front();
    if (run.fingerprint != first.fingerprint) {
      throw InvalidArgument(
          "results of two models: {} (fingerprint {}) and {} (fingerprint {}); make a report of "
          "each",
          first.model, first.fingerprint, run.model, run.fingerprint);
    }
  }
  std::map<std::string, nlohmann::ordered_json> options;
  for (const auto& [name, json] : results.configurations) {
    const auto [there, added] = options.emplace(name, json);
    if (added || there->second == json) continue;
    std::string differs = "some";
    for (const auto& [option, value] : json.items()) {
      const auto other = there->second.find(option);
      if (other != there->second.end() && *other != value) {
        differs = fmt::format("{} = {} and {}", option, other->dump(), value.dump());
        break;
      }
    }
    throw InvalidArgument("configuration '{}' stands for different options in these files: {}",
                          name, differs);
  }
}

// A task's position in its suite; unknown tasks come last.
size_t Rank(const std::string& task) {
  const auto ruler = TaskNames();
  const auto place = std::find(ruler.begin(), ruler.end(), task);
  if (place != ruler.end()) return static_cast<size_t>(place - ruler.begin());
  const auto longbench = LongBenchNames();
  return ruler.size() + static_cast<size_t>(std::find(longbench.begin(), longbench.end(), task) -
                                            longbench.begin());
}

void AddPredictions(const Results& results, Summary* summary) {
  std::map<int64_t, LengthSummary> lengths;
  // A prediction that occurs in two files counts once.
  std::set<std::string> seen;
  for (const Prediction& p : results.predictions) {
    if (!seen.insert(p.key + p.configuration + p.id).second) continue;
    LengthSummary& length = lengths[p.length];
    length.length = p.length;
    if (std::find(length.tasks.begin(), length.tasks.end(), p.task) == length.tasks.end()) {
      length.tasks.push_back(p.task);
    }
    length.answers[p.configuration][p.task][p.id] = {p.score, Fnv1a(p.prediction)};
    if (p.drafts.drafted > 0) length.drafts[p.configuration][p.task] += p.drafts;
    LengthSummary::Totals& totals = length.totals[p.configuration];
    totals.kv += p.kv;
    totals.generated += static_cast<double>(std::max<int64_t>(p.generated_tokens - 1, 0));
    totals.decode_seconds += p.decode_seconds;
    ++totals.samples;
  }
  for (auto& [key, length] : lengths) {
    // Samples that run together end in any order; tables use the suite's order.
    std::stable_sort(length.tasks.begin(), length.tasks.end(),
                     [](const std::string& a, const std::string& b) { return Rank(a) < Rank(b); });
    summary->lengths.push_back(std::move(length));
  }
}

void AddWindows(const Results& results, Summary* summary) {
  std::set<std::string> seen;
  for (const Window& window : results.windows) {
    if (!seen.insert(window.key + window.configuration).second) continue;
    WindowSummary& all = summary->windows[window.length][window.configuration];
    ++all.windows;
    all.kv += window.kv;
    std::set<int64_t> touched;
    for (size_t i = 0; i < window.nll.size(); ++i) {
      all.Add(window, i);
      const int64_t end = BucketEnd(window.first + 1 + static_cast<int64_t>(i));
      WindowSummary& bucket = summary->buckets[end][window.configuration];
      bucket.Add(window, i);
      if (touched.insert(end).second) ++bucket.windows;
    }
    // Prompts are processed with full attention under every policy.
    if (!window.kl.empty()) continue;
    for (const Window::Bucket& bucket : window.prompt) {
      WindowSummary& prompt = summary->prompt[bucket.end];
      prompt.tokens += bucket.tokens;
      prompt.nll += bucket.nll;
    }
  }
}

void AddHeads(const Results& results, Summary* summary) {
  for (const HeadTable& table : results.heads) {
    const auto [it, added] = summary->heads.emplace(table.configuration, table);
    HeadTable& sum = it->second;
    if (added || sum.layers != table.layers || sum.kv_heads != table.kv_heads) continue;
    for (size_t i = 0; i < sum.heads.size(); ++i) sum.heads[i] += table.heads[i];
  }
}

}  // namespace

std::optional<double> LengthSummary::Task(const std::string& configuration,
                                          const std::string& task) const {
  const Answers* of = Of(answers, configuration, task);
  if (of == nullptr) return std::nullopt;
  double sum = 0;
  for (const auto& [id, answer] : *of) sum += answer.score;
  return sum / static_cast<double>(of->size());
}

std::optional<double> LengthSummary::Average(const std::string& configuration) const {
  double sum = 0;
  int64_t count = 0;
  for (const std::string& task : tasks) {
    if (const auto score = Task(configuration, task)) {
      sum += *score;
      ++count;
    }
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::optional<double> LengthSummary::Difference(const std::string& configuration,
                                                const std::string& reference) const {
  double sum = 0;
  int64_t count = 0;
  for (const std::string& task : tasks) {
    const auto difference = MeanOfShared(
        Of(answers, configuration, task), Of(answers, reference, task),
        [](const Answer& mine, const Answer& theirs) { return mine.score - theirs.score; });
    if (!difference) continue;
    sum += *difference;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::optional<double> LengthSummary::Agreement(const std::string& configuration,
                                               const std::string& task,
                                               const std::string& reference) const {
  return MeanOfShared(Of(answers, configuration, task), Of(answers, reference, task),
                      [](const Answer& mine, const Answer& theirs) {
                        return mine.text == theirs.text ? 1.0 : 0.0;
                      });
}

void WindowSummary::Add(const Window& window, size_t token) {
  ++tokens;
  nll += double{window.nll[token]};
  if (window.kl.empty()) return;
  kl += double{window.kl[token]};
  kls.push_back(window.kl[token]);
  same_top += window.same_top[token];
}

double WindowSummary::Perplexity() const {
  return tokens > 0 ? std::exp(nll / static_cast<double>(tokens)) : 0;
}

double WindowSummary::KlQuantile(double share) const {
  if (kls.empty()) return 0;
  std::vector<float> sorted = kls;
  const auto at =
      std::min(static_cast<size_t>(share * static_cast<double>(sorted.size())), sorted.size() - 1);
  const auto place = sorted.begin() + static_cast<std::ptrdiff_t>(at);
  std::nth_element(sorted.begin(), place, sorted.end());
  return double{*place};
}

Summary Summarize(const Results& results) {
  CheckComparable(results);
  Summary summary;
  AddPredictions(results, &summary);
  AddWindows(results, &summary);
  AddHeads(results, &summary);
  std::set<std::string> with_results;
  for (const Prediction& prediction : results.predictions) {
    with_results.insert(prediction.configuration);
  }
  for (const Window& window : results.windows) with_results.insert(window.configuration);
  for (const auto& [name, options] : results.configurations) {
    if (with_results.erase(name) > 0) summary.configurations.push_back(name);
  }
  // Files that were combined by hand may lack a line.
  summary.configurations.insert(summary.configurations.end(), with_results.begin(),
                                with_results.end());
  return summary;
}

}  // namespace litecache::eval
