#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "eval/report/summary.h"
#include "eval/run/context.h"

namespace litecache::eval {
namespace {

constexpr const char* kBaseline = "full";
constexpr const char* kNone = "–";

std::string Percent(std::optional<double> share, int digits = 1) {
  return share ? fmt::format("{:.{}f}", 100 * *share, digits) : kNone;
}

std::string Signed(std::optional<double> share) {
  if (!share) return kNone;
  const double points = std::round(1000 * *share) / 10;
  return points == 0 ? "0.0" : fmt::format("{:+.1f}", points);
}

std::string Bytes(double bytes) {
  return bytes > 0 ? FormatBytes(static_cast<uint64_t>(std::min(bytes, 1e18))) : kNone;
}

std::string HitRatio(const KvSums& kv) {
  return kv.lookups > 0 ? fmt::format("{:.3f}", kv.HitRatio()) : kNone;
}

std::string Ratio(double sum, double count) {
  return count > 0 ? fmt::format("{:.3f}", sum / count) : kNone;
}

std::vector<std::string> Row(std::string label) { return {std::move(label)}; }

Table LengthTable(const Summary& summary, const LengthSummary& length) {
  Table table;
  table.title = length.length > 0 ? fmt::format("Scores at {} tokens", FormatTokens(length.length))
                                  : "Scores";
  table.note = "In percent. The difference to full attention is over the samples that both have.";
  table.head = Row("task");
  std::vector<std::string> names;
  for (const std::string& name : summary.configurations) {
    if (length.totals.contains(name)) names.push_back(name);
  }
  table.head.insert(table.head.end(), names.begin(), names.end());
  for (const std::string& task : length.tasks) {
    auto row = Row(task);
    for (const std::string& name : names) row.push_back(Percent(length.Task(name, task)));
    table.rows.push_back(std::move(row));
  }
  const size_t tasks = table.rows.size();
  const auto add = [&](const char* label, const auto& value) {
    auto row = Row(label);
    for (const std::string& name : names) row.push_back(value(name, length.totals.at(name)));
    table.rows.push_back(std::move(row));
  };
  using Totals = LengthSummary::Totals;
  add("average",
      [&](const std::string& name, const Totals&) { return Percent(length.Average(name), 2); });
  add("difference to full", [&](const std::string& name, const Totals&) {
    return name == kBaseline ? kNone : Signed(length.Difference(name, kBaseline));
  });
  add("hit ratio", [](const std::string&, const Totals& t) { return HitRatio(t.kv); });
  add("moved per token",
      [](const std::string&, const Totals& t) { return Bytes(t.kv.MovedPerToken()); });
  add("decode tok/s", [](const std::string&, const Totals& t) {
    return t.decode_seconds > 0 ? fmt::format("{:.1f}", t.generated / t.decode_seconds) : kNone;
  });
  add("samples", [](const std::string&, const Totals& t) { return fmt::format("{}", t.samples); });
  table.summary_rows = table.rows.size() - tasks;
  return table;
}

// A figure of every task under the configurations for which `value` has one; without rows if it has
// none.
template <class Value>
Table TaskTable(const Summary& summary, const LengthSummary& length, std::string title,
                std::string note, const Value& value) {
  Table table;
  table.title = std::move(title);
  if (length.length > 0) table.title += fmt::format(" at {} tokens", FormatTokens(length.length));
  table.note = std::move(note);
  table.head = Row("task");
  std::vector<std::vector<std::string>> columns;
  for (const std::string& name : summary.configurations) {
    std::vector<std::string> column;
    for (const std::string& task : length.tasks) column.push_back(value(name, task));
    const auto has = [](const std::string& cell) { return cell != kNone; };
    if (std::none_of(column.begin(), column.end(), has)) continue;
    table.head.push_back(name);
    columns.push_back(std::move(column));
  }
  if (columns.empty()) return table;
  for (size_t i = 0; i < length.tasks.size(); ++i) {
    table.rows.push_back(Row(length.tasks[i]));
    for (const auto& column : columns) table.rows.back().push_back(column[i]);
  }
  return table;
}

Table AgreementTable(const Summary& summary, const LengthSummary& length) {
  return TaskTable(
      summary, length, "Same answers as full attention",
      "Answers with the same text to the end, in percent of the samples that both have.",
      [&](const std::string& name, const std::string& task) {
        if (name == kBaseline) return std::string(kNone);
        return Percent(length.Agreement(name, task, kBaseline));
      });
}

Table DraftTable(const Summary& summary, const LengthSummary& length) {
  return TaskTable(
      summary, length, "Accepted drafts",
      "In percent of the tokens that were drafted; in brackets the tokens of a pass through the "
      "model.",
      [&](const std::string& name, const std::string& task) {
        const auto of = length.drafts.find(name);
        if (of == length.drafts.end() || !of->second.contains(task)) return std::string(kNone);
        const DraftStats& drafts = of->second.at(task);
        return fmt::format(
            "{:.1f} ({:.2f})",
            100 * static_cast<double>(drafts.accepted) / static_cast<double>(drafts.drafted),
            drafts.tokens_per_pass());
      });
}

Table OverviewTable(const Summary& summary) {
  Table table;
  table.title = "Average by length";
  table.note =
      "Mean of the tasks' scores in percent; in brackets the difference to full attention.";
  table.head = Row("configuration");
  for (const LengthSummary& length : summary.lengths) {
    table.head.push_back(FormatTokens(length.length));
  }
  for (const std::string& name : summary.configurations) {
    auto row = Row(name);
    for (const LengthSummary& length : summary.lengths) {
      std::string cell = Percent(length.Average(name), 2);
      const auto difference = length.Difference(name, kBaseline);
      if (difference && name != kBaseline) cell += fmt::format(" ({})", Signed(difference));
      row.push_back(cell);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table PerplexityTable(const Summary& summary, int64_t length,
                      const std::map<std::string, WindowSummary>& by_configuration) {
  Table table;
  table.title = fmt::format("Perplexity at {} tokens", FormatTokens(length));
  const auto full = by_configuration.find(kBaseline);
  const WindowSummary& any = by_configuration.begin()->second;
  table.note = fmt::format(
      "The last {} tokens of {} windows, one per step. KL: divergence from full attention's "
      "next-token distributions, in nats.",
      any.tokens / std::max<int64_t>(any.windows, 1), any.windows);
  table.head = {"configuration", "perplexity", "to full",   "KL mean",
                "KL p99",        "same top",   "hit ratio", "moved per token"};
  for (const std::string& name : summary.configurations) {
    const auto found = by_configuration.find(name);
    if (found == by_configuration.end()) continue;
    const WindowSummary& w = found->second;
    auto row = Row(name);
    row.push_back(fmt::format("{:.4f}", w.Perplexity()));
    if (full == by_configuration.end() || w.kls.empty()) {
      row.insert(row.end(), 4, kNone);
    } else {
      row.push_back(
          fmt::format("{:+.2f}%", 100 * (w.Perplexity() / full->second.Perplexity() - 1)));
      row.push_back(fmt::format("{:.5f}", w.MeanKl()));
      row.push_back(fmt::format("{:.4f}", w.KlQuantile(0.99)));
      row.push_back(fmt::format("{:.2f}%", 100 * w.SameTop()));
    }
    row.push_back(HitRatio(w.kv));
    row.push_back(Bytes(w.kv.MovedPerToken()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table BucketTable(const Summary& summary) {
  Table table;
  table.title = "Perplexity by position";
  table.note =
      "Positions up to the one named, from the half of it on. As a prompt: full attention, "
      "processed in chunks; the others are scored one token a step.";
  table.head = {"positions to", "as a prompt"};
  for (const std::string& name : summary.configurations) table.head.push_back(name);
  std::map<int64_t, bool> ends;
  for (const auto& [end, bucket] : summary.prompt) ends[end] = true;
  for (const auto& [end, bucket] : summary.buckets) ends[end] = true;
  for (const auto& [end, used] : ends) {
    auto row = Row(FormatTokens(end));
    const auto prompt = summary.prompt.find(end);
    row.push_back(prompt == summary.prompt.end()
                      ? kNone
                      : fmt::format("{:.4f}", prompt->second.Perplexity()));
    for (const std::string& name : summary.configurations) {
      const auto bucket = summary.buckets.find(end);
      const bool has = bucket != summary.buckets.end() && bucket->second.contains(name);
      row.push_back(has ? fmt::format("{:.4f}", bucket->second.at(name).Perplexity()) : kNone);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// A ratio for every layer and for all of them.
template <typename Numerator, typename Denominator>
Table LayerTable(const Summary& summary, std::string title, std::string note,
                 const Numerator& numerator, const Denominator& denominator) {
  Table table;
  table.title = std::move(title);
  table.note = std::move(note);
  table.head = Row("configuration");
  bool any = false;
  for (const std::string& name : summary.configurations) {
    const auto found = summary.heads.find(name);
    if (found == summary.heads.end()) continue;
    const HeadTable& heads = found->second;
    if (table.head.size() == 1) {
      for (int64_t layer = 0; layer < heads.layers; ++layer) {
        table.head.push_back(fmt::format("layer {}", layer));
      }
      table.head.push_back("all");
    }
    auto row = Row(name);
    double sum = 0, count = 0;
    for (int64_t layer = 0; layer < heads.layers; ++layer) {
      double layer_sum = 0, layer_count = 0;
      for (int64_t head = 0; head < heads.kv_heads; ++head) {
        const auto& counters = heads.heads[static_cast<size_t>(layer * heads.kv_heads + head)];
        layer_sum += numerator(counters);
        layer_count += denominator(counters);
      }
      row.push_back(Ratio(layer_sum, layer_count));
      sum += layer_sum;
      count += layer_count;
    }
    row.push_back(Ratio(sum, count));
    any = any || (sum > 0 && count > 0);
    table.rows.push_back(std::move(row));
  }
  if (!any) table.rows.clear();
  return table;
}

}  // namespace

std::vector<Table> MakeTables(const Summary& summary) {
  std::vector<Table> tables;
  const auto add = [&](Table table) {
    if (!table.rows.empty()) tables.push_back(std::move(table));
  };
  if (summary.lengths.size() > 1) tables.push_back(OverviewTable(summary));
  for (const LengthSummary& length : summary.lengths) {
    tables.push_back(LengthTable(summary, length));
    add(AgreementTable(summary, length));
    add(DraftTable(summary, length));
  }
  for (const auto& [length, by_configuration] : summary.windows) {
    tables.push_back(PerplexityTable(summary, length, by_configuration));
  }
  if (!summary.buckets.empty()) tables.push_back(BucketTable(summary));
  const auto lookups = [](const kv::HeadCounters& h) { return static_cast<double>(h.lookups); };
  add(LayerTable(
      summary, "Hit ratio by layer", "Share of the lookups that reuse the cached rows.",
      [](const kv::HeadCounters& h) { return static_cast<double>(h.hits); }, lookups));
  add(LayerTable(
      summary, "Recall of the retriever by layer",
      "Share of the exact top-k that a refresh finds with the same query.",
      [](const kv::HeadCounters& h) { return h.recall_retrieved; },
      [](const kv::HeadCounters& h) { return static_cast<double>(h.recall_refreshes); }));
  add(LayerTable(
      summary, "Recall of what is attended by layer",
      "Share of the exact top-k that is cached, stale rows of hits included.",
      [](const kv::HeadCounters& h) { return h.recall_held; }, lookups));
  return tables;
}

}  // namespace litecache::eval
