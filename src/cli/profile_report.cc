#include "cli/profile_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/units.h"

namespace litecache::cli {
namespace {

using Json = nlohmann::ordered_json;
using kv::Profile;

// The shares of attention mass requested most often.
constexpr double kKeeps[] = {0.9, 0.95, 0.99, 0.999};

// Mean over the heads of layers [begin, end).
struct MeanOfFits {
  double tau = 0, hits = 0, kept = 0;
};
MeanOfFits MeanFit(const Profile& p, int64_t begin, int64_t end, double keep, bool predicted) {
  MeanOfFits sum;
  for (int64_t layer = begin; layer < end; ++layer) {
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const Profile::Fit fit = p.FitThreshold(layer, head, keep, predicted);
      sum.tau += double{fit.tau};
      sum.hits += fit.hits;
      sum.kept += fit.kept;
    }
  }
  const auto count = static_cast<double>((end - begin) * p.kv_heads);
  return count > 0 ? MeanOfFits{sum.tau / count, sum.hits / count, sum.kept / count} : sum;
}

template <typename T>
double LayerMean(const std::vector<T>& values, int64_t layer, int64_t width) {
  const auto begin = values.begin() + layer * width;
  return std::accumulate(begin, begin + width, 0.0) / static_cast<double>(width);
}

std::string Range(const Profile& p, int64_t layer, double keep) {
  double low = 1, high = -1;
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    const double tau = double{p.FittedThreshold(layer, head, keep, false)};
    low = std::min(low, tau);
    high = std::max(high, tau);
  }
  return low == high ? fmt::format("{:.3g}", low) : fmt::format("{:.3g} to {:.3g}", low, high);
}

std::string LayerTable(const profile::ProfilerResult& result, double keep) {
  const Profile& p = result.profile;
  // One trained and one untrained column per width, and Loki's default rank; --json has the others.
  std::vector<const profile::RetrieverRecall*> columns;
  for (const auto& recall : result.recall) {
    if (recall.name.find(' ') == std::string::npos) columns.push_back(&recall);
  }
  const bool importance = !p.importance.empty();
  std::string text = fmt::format("layer  similarity  {}{:<16}  hits",
                                 importance ? "importance  " : "", "threshold");
  for (const auto* column : columns) text += fmt::format("  {:>8}", column->name);
  text += '\n';
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    text += fmt::format("{:>5}  {:>10.3f}  ", layer, LayerMean(p.similarity, layer, p.kv_heads));
    if (importance) text += fmt::format("{:>10.3f}  ", LayerMean(p.importance, layer, p.q_heads));
    text += fmt::format("{:<16}  {:>3.0f}%", Range(p, layer, keep),
                        100 * MeanFit(p, layer, layer + 1, keep, false).hits);
    for (const auto* column : columns) {
      text += fmt::format("  {:>7.1f}%", 100 * LayerMean(column->heads, layer, p.kv_heads));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string ProfileText(const profile::ProfilerResult& result,
                        const ProfileReportOptions& options) {
  const Profile& p = result.profile;
  std::string text = fmt::format(
      "{} windows of up to {} tokens, {} lookups per head, budget {:.3g}%\n"
      "threshold, hits: fitted to keep {:.4g}% of the attention mass that fresh rows would "
      "hold\n\n",
      result.windows, p.curve_context, result.lookups, 100 * p.curve_budget, 100 * options.keep);
  text += LayerTable(result, options.keep);
  text +=
      "\nexpected hit ratio of the fits over the layers above 0\n  keep     actual queries  "
      "predicted queries\n";
  const int64_t first = p.layers > 1 ? 1 : 0;
  for (const double keep : kKeeps) {
    const MeanOfFits actual = MeanFit(p, first, p.layers, keep, false);
    const MeanOfFits ahead = MeanFit(p, first, p.layers, keep, true);
    text += fmt::format("  {:<7.4g}  {:>5.1f}%          {:>5.1f}%\n", keep, 100 * actual.hits,
                        100 * ahead.hits);
  }
  if (!result.recall.empty()) {
    text += "\nrecall of the exact top rows on held-out windows\n";
    for (const auto& recall : result.recall) {
      text += fmt::format("  {:<24}{:>5.1f}%\n", recall.name, 100 * recall.mean());
    }
  }
  text += fmt::format("\na layer of a decode step {} | link {}/s\n", FormatSeconds(p.layer_seconds),
                      FormatBytes(static_cast<uint64_t>(p.link_bytes_per_second)));
  std::string times;
  for (const auto& [name, seconds] : result.phases) {
    times += (times.empty() ? "" : ", ") + fmt::format("{} {}", name, FormatSeconds(seconds));
  }
  return text + "time: " + times + "\n";
}

Json ProfileJson(const profile::ProfilerResult& result, const ProfileReportOptions& options) {
  const Profile& p = result.profile;
  Json json = {{"fingerprint", p.fingerprint},
               {"corpus", p.corpus},
               {"windows", result.windows},
               {"context", p.curve_context},
               {"budget", p.curve_budget},
               {"lookups", result.lookups},
               {"keep", options.keep},
               {"layer_s", p.layer_seconds},
               {"link_bytes_per_s", p.link_bytes_per_second}};
  Json heads = Json::array();
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const auto index = static_cast<size_t>(layer * p.kv_heads + head);
      const int64_t group = p.q_heads / p.kv_heads;
      const Profile::Fit actual = p.FitThreshold(layer, head, options.keep, false);
      const Profile::Fit ahead = p.FitThreshold(layer, head, options.keep, true);
      Json entry = {{"layer", layer},
                    {"head", head},
                    {"similarity", p.similarity[index]},
                    {"threshold", actual.tau},
                    {"hit_ratio", actual.hits},
                    {"threshold_predicted", ahead.tau},
                    {"hit_ratio_predicted", ahead.hits}};
      if (!p.importance.empty()) {
        const auto q = p.importance.begin() + layer * p.q_heads + head * group;
        entry["importance"] = std::vector<float>(q, q + group);
      }
      for (const auto& recall : result.recall) entry["recall"][recall.name] = recall.heads[index];
      heads.push_back(std::move(entry));
    }
  }
  json["heads"] = std::move(heads);
  const int64_t first = p.layers > 1 ? 1 : 0;
  for (const double keep : kKeeps) {
    json["hit_ratio"].push_back({{"keep", keep},
                                 {"actual", MeanFit(p, first, p.layers, keep, false).hits},
                                 {"predicted", MeanFit(p, first, p.layers, keep, true).hits}});
  }
  for (const auto& recall : result.recall) json["recall"][recall.name] = recall.mean();
  for (const auto& [name, seconds] : result.phases) json["phases_s"][name] = seconds;
  return json;
}

}  // namespace litecache::cli
