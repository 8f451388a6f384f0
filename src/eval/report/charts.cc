#include "eval/report/charts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/markup.h"
#include "base/units.h"
#include "eval/report/svg.h"
#include "eval/run/context.h"

namespace litecache::eval {
namespace {

constexpr const char* kFull = "full";

std::string TokensTick(double value) { return FormatTokens(std::llround(value)); }
std::string BytesTick(double value) {
  return value < 1 ? "0" : FormatBytes(static_cast<uint64_t>(std::min(value, 1e18)));
}

// The reference has a fixed colour; the others have the same colour in every chart.
size_t ColourOf(const Summary& summary, const std::string& name) {
  if (name == kFull) return 0;
  size_t colour = 1;
  for (const std::string& other : summary.configurations) {
    if (other == name) return colour;
    if (other != kFull) ++colour;
  }
  return colour;
}

// A quantity by which configurations are compared, with its values at every length.
struct Measure {
  struct Value {
    double value = 0;
    double bytes_per_token = 0;  // transferred
  };
  std::string name, unit;
  std::string note;           // of the chart against length
  const char* format = "";    // of a value
  const char* moved_by = "";  // "a token", ...
  bool higher_is_better = false;
  std::map<int64_t, std::map<std::string, Value>> values;  // [length][configuration]

  std::string Text(double value) const { return fmt::format(fmt::runtime(format), value); }
};

Measure MeasureOfScores(const Summary& summary) {
  Measure scores{.name = "Score",
                 .unit = "average score, %",
                 .note = "Mean over the tasks of each length.",
                 .format = "{:.2f}",
                 .moved_by = "a generated token",
                 .higher_is_better = true};
  for (const LengthSummary& length : summary.lengths) {
    auto& values = scores.values[length.length];
    for (const auto& [name, totals] : length.totals) {
      if (const auto average = length.Average(name)) {
        values[name] = {100 * *average, totals.kv.MovedPerToken()};
      }
    }
  }
  return scores;
}

Measure MeasureOfDivergence(const Summary& summary) {
  Measure divergence{
      .name = "Divergence",
      .unit = "mean KL divergence, nats",
      .note = "Of the next-token distributions, in the text that perplexity was measured on.",
      .format = "{:.5f}",
      .moved_by = "a token"};
  for (const auto& [length, by_configuration] : summary.windows) {
    auto& values = divergence.values[length];
    for (const auto& [name, windows] : by_configuration) {
      if (!windows.kls.empty()) {
        values[name] = {windows.MeanKl(), windows.kv.MovedPerToken()};
      }
    }
  }
  return divergence;
}

Chart ChartOf(const Measure& measure) {
  Chart chart;
  chart.y_title = measure.unit;
  chart.from_zero = !measure.higher_is_better;
  if (measure.higher_is_better) chart.last_y_tick = 100;
  return chart;
}

Figure ByLength(const Summary& summary, const Measure& measure) {
  Chart chart = ChartOf(measure);
  chart.x_title = "tokens of context";
  chart.logarithmic = true;
  chart.x_format = TokensTick;
  for (const auto& [length, values] : measure.values) {
    chart.x_ticks.push_back(static_cast<double>(length));
  }
  for (const std::string& name : summary.configurations) {
    Series series{name, ColourOf(summary, name), {}};
    for (const auto& [length, values] : measure.values) {
      const auto found = values.find(name);
      if (found == values.end()) continue;
      const double value = found->second.value;
      series.points.push_back({static_cast<double>(length), value,
                               fmt::format("{} at {}", measure.Text(value), FormatTokens(length))});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return {fmt::format("{}{} against length", measure.name,
                      measure.higher_is_better ? "" : " from full attention"),
          measure.note, DrawChart(chart)};
}

// The points that no other point dominates (fewer bytes and a better figure).
std::vector<Point> ParetoFront(std::vector<Point> points, bool higher_is_better) {
  std::sort(points.begin(), points.end(), [&](const Point& a, const Point& b) {
    return a.x != b.x ? a.x < b.x : higher_is_better ? a.y > b.y : a.y < b.y;
  });
  std::vector<Point> front;
  for (const Point& point : points) {
    if (front.empty() || (higher_is_better ? point.y > front.back().y : point.y < front.back().y)) {
      front.push_back(point);
    }
  }
  return front;
}

Figure ByBytes(const Summary& summary, const Measure& measure, int64_t length) {
  Chart chart = ChartOf(measure);
  chart.lines = false;
  chart.x_title = "bytes moved per token";
  chart.x_format = BytesTick;
  std::vector<Point> points;
  double most = 0;
  for (const std::string& name : summary.configurations) {
    const auto& values = measure.values.at(length);
    const auto found = values.find(name);
    if (found == values.end()) continue;
    const auto [value, bytes] = found->second;
    if (name == kFull) {  // all rows are on the device
      chart.reference = value;
      continue;
    }
    most = std::max(most, bytes);
    points.push_back({bytes, value, fmt::format("{}, {}", measure.Text(value), BytesTick(bytes))});
    chart.series.push_back({name, ColourOf(summary, name), {points.back()}});
  }
  // Round numbers of bytes: KiB and MiB.
  const double unit = std::exp2(std::floor(std::log2(std::max(most, 1.0)) / 10) * 10);
  for (const double tick : RoundTicks(0, most / unit, 5)) chart.x_ticks.push_back(tick * unit);
  chart.front = ParetoFront(points, measure.higher_is_better);
  return {fmt::format("{} against bytes moved, {} tokens", measure.name, FormatTokens(length)),
          fmt::format("Rows brought from host memory for {}. The line joins what nothing beats in "
                      "both.",
                      measure.moved_by),
          DrawChart(chart)};
}

// Scores of the samples with one needle, by its depth: tables with cells shaded by score.
Figure Needles(const Summary& summary, const Results& results) {
  constexpr size_t kBins = 10;
  struct Cell {
    double score = 0;
    int64_t count = 0;
  };
  std::map<std::string, std::map<int64_t, std::vector<Cell>>> cells;
  for (const Prediction& p : results.predictions) {
    if (p.depths.size() != 1) continue;
    auto& bins = cells[p.configuration][p.length];
    bins.resize(kBins);
    const double place = std::clamp(p.depths[0], 0.0, 1.0) * static_cast<double>(kBins);
    Cell& cell = bins[std::min(static_cast<size_t>(place), kBins - 1)];
    cell.score += p.score;
    ++cell.count;
  }
  std::string html;
  for (const std::string& name : summary.configurations) {
    const auto found = cells.find(name);
    if (found == cells.end()) continue;
    html += fmt::format("<table class=\"map\"><caption>{}</caption>\n<tr><th>depth</th>",
                        EscapeMarkup(name));
    for (const auto& [length, bins] : found->second) {
      html += fmt::format("<th>{}</th>", FormatTokens(length));
    }
    for (size_t bin = 0; bin < kBins; ++bin) {
      html += fmt::format("</tr>\n<tr><th>{}–{}%</th>", 100 * bin / kBins, 100 * (bin + 1) / kBins);
      for (const auto& [length, bins] : found->second) {
        const Cell& cell = bins[bin];
        if (cell.count == 0) {
          html += "<td></td>";
          continue;
        }
        const double share = cell.score / static_cast<double>(cell.count);
        html += fmt::format("<td{} style=\"--share: {:.2f}\">{:.0f}</td>",
                            share > 0.7 ? " class=\"on\"" : "", share * share, 100 * share);
      }
    }
    html += "</tr></table>\n";
  }
  if (!html.empty()) html = "<div class=\"maps\">" + html + "</div>";
  return {"Needles found, by depth and length",
          "Samples with one needle; score in percent, empty where no needle lay.", html};
}

}  // namespace

std::vector<Figure> MakeFigures(const Summary& summary, const Results& results) {
  std::vector<Figure> figures;
  const Measure scores = MeasureOfScores(summary), divergence = MeasureOfDivergence(summary);
  figures.push_back(ByLength(summary, scores));
  for (const auto& [length, values] : scores.values) {
    figures.push_back(ByBytes(summary, scores, length));
  }
  figures.push_back(Needles(summary, results));
  figures.push_back(ByLength(summary, divergence));
  for (const auto& [length, values] : divergence.values) {
    figures.push_back(ByBytes(summary, divergence, length));
  }
  std::erase_if(figures, [](const Figure& figure) { return figure.html.empty(); });
  return figures;
}

}  // namespace litecache::eval
