#include "eval/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
std::string PercentTick(double value) { return fmt::format("{:g}", value); }

// The reference has a colour of its own, the others theirs in every chart.
size_t ColourOf(const Summary& summary, const std::string& name) {
  if (name == kFull) return 0;
  size_t colour = 1;
  for (const std::string& other : summary.configurations) {
    if (other == name) return colour;
    if (other != kFull) ++colour;
  }
  return colour;
}

void AddFigure(std::string title, std::string note, std::string html,
               std::vector<Figure>* figures) {
  if (html.empty()) return;
  figures->push_back({std::move(title), std::move(note), std::move(html)});
}

Axis LengthAxis(const std::vector<double>& lengths) {
  Axis axis;
  axis.title = "tokens of context";
  axis.logarithmic = true;
  axis.ticks = lengths;
  axis.format = TokensTick;
  return axis;
}

// Points that no other one beats in both directions: fewer bytes, better figure.
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

Chart ParetoChart(const std::string& y_title, bool higher_is_better) {
  Chart chart;
  chart.lines = false;
  chart.x.title = "bytes moved a token";
  chart.x.format = BytesTick;
  chart.x.least = 0;
  chart.y.title = y_title;
  chart.y.format = PercentTick;
  if (!higher_is_better) chart.y.least = 0;
  return chart;
}

void FinishPareto(Chart* chart, bool higher_is_better) {
  std::vector<Point> points;
  double most = 0;
  for (const Series& series : chart->series) {
    points.insert(points.end(), series.points.begin(), series.points.end());
    for (const Point& point : series.points) most = std::max(most, point.x);
  }
  // Round in bytes: KiB and MiB.
  const double unit = std::exp2(std::floor(std::log2(std::max(most, 1.0)) / 10) * 10);
  for (const double tick : RoundTicks(0, most / unit, 5)) chart->x.ticks.push_back(tick * unit);
  chart->front = ParetoFront(points, higher_is_better);
}

Figure ScoresByLength(const Summary& summary) {
  Chart chart;
  std::vector<double> lengths;
  for (const LengthSummary& length : summary.lengths) {
    lengths.push_back(static_cast<double>(length.length));
  }
  chart.x = LengthAxis(lengths);
  chart.y.title = "average score, %";
  chart.y.format = PercentTick;
  chart.y.last_tick = 100;
  for (const std::string& name : summary.configurations) {
    Series series{name, ColourOf(summary, name), {}};
    for (const LengthSummary& length : summary.lengths) {
      if (const auto average = length.Average(name)) {
        series.points.push_back(
            {static_cast<double>(length.length), 100 * *average,
             fmt::format("{:.2f} at {}", 100 * *average, FormatTokens(length.length))});
      }
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return {"Score against length", "Mean over the tasks of each length.", DrawChart(chart)};
}

Figure ScoresByBytes(const Summary& summary, const LengthSummary& length) {
  Chart chart = ParetoChart("average score, %", true);
  chart.y.last_tick = 100;
  if (const auto full = length.Average(kFull)) {
    chart.reference = 100 * *full;
    chart.reference_name = "full attention";
  }
  for (const std::string& name : summary.configurations) {
    const auto totals = length.totals.find(name);
    const auto average = length.Average(name);
    if (name == kFull || totals == length.totals.end() || !average) continue;
    const double moved = totals->second.kv.MovedPerToken();
    chart.series.push_back(
        {name,
         ColourOf(summary, name),
         {{moved, 100 * *average, fmt::format("{:.2f}, {}", 100 * *average, BytesTick(moved))}}});
  }
  FinishPareto(&chart, true);
  return {
      fmt::format("Score against bytes moved, {} tokens", FormatTokens(length.length)),
      "Rows brought from host memory for a generated token. The line joins what nothing beats in "
      "both.",
      DrawChart(chart)};
}

Figure DivergenceByLength(const Summary& summary) {
  Chart chart;
  std::vector<double> lengths;
  for (const auto& [length, by] : summary.windows) lengths.push_back(static_cast<double>(length));
  chart.x = LengthAxis(lengths);
  chart.y.title = "mean KL divergence, nats";
  chart.y.least = 0;
  for (const std::string& name : summary.configurations) {
    Series series{name, ColourOf(summary, name), {}};
    for (const auto& [length, by_configuration] : summary.windows) {
      const auto found = by_configuration.find(name);
      if (found == by_configuration.end() || found->second.kls.empty()) continue;
      const double kl = found->second.MeanKl();
      series.points.push_back(
          {static_cast<double>(length), kl, fmt::format("{:.5f} at {}", kl, FormatTokens(length))});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return {"Divergence from full attention against length",
          "Of the next-token distributions, in the text that perplexity was measured on.",
          DrawChart(chart)};
}

Figure DivergenceByBytes(const Summary& summary, int64_t length,
                         const std::map<std::string, WindowSummary>& by_configuration) {
  Chart chart = ParetoChart("mean KL divergence, nats", false);
  for (const std::string& name : summary.configurations) {
    const auto found = by_configuration.find(name);
    if (found == by_configuration.end() || found->second.kls.empty()) continue;
    const double kl = found->second.MeanKl();
    const double moved = found->second.kv.MovedPerToken();
    chart.series.push_back({name,
                            ColourOf(summary, name),
                            {{moved, kl, fmt::format("{:.5f}, {}", kl, BytesTick(moved))}}});
  }
  FinishPareto(&chart, false);
  return {fmt::format("Divergence against bytes moved, {} tokens", FormatTokens(length)),
          "Rows brought from host memory for a token. The line joins what nothing beats in both.",
          DrawChart(chart)};
}

// Scores of the samples with one needle, by its depth.
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
    HeatMap map;
    map.title = name;
    map.column_title = "tokens of context";
    map.row_title = "depth of the needle";
    for (size_t bin = 0; bin < kBins; ++bin) {
      map.rows.push_back(fmt::format("{}–{}%", 100 * bin / kBins, 100 * (bin + 1) / kBins));
    }
    map.cells.assign(kBins, {});
    for (const auto& [length, bins] : found->second) {
      map.columns.push_back(FormatTokens(length));
      for (size_t bin = 0; bin < kBins; ++bin) {
        const Cell& cell = bins[bin];
        map.cells[bin].push_back(cell.count > 0
                                     ? std::optional(cell.score / static_cast<double>(cell.count))
                                     : std::nullopt);
      }
    }
    html += DrawHeatMap(map);
  }
  if (!html.empty()) html = "<div class=\"maps\">" + html + "</div>";
  return {"Needles found, by depth and length",
          "Samples with one needle; score in percent, empty where no needle lay.", html};
}

}  // namespace

std::vector<Figure> MakeFigures(const Summary& summary, const Results& results) {
  std::vector<Figure> figures;
  const auto add = [&](Figure figure) {
    AddFigure(std::move(figure.title), std::move(figure.note), std::move(figure.html), &figures);
  };
  add(ScoresByLength(summary));
  for (const LengthSummary& length : summary.lengths) add(ScoresByBytes(summary, length));
  add(Needles(summary, results));
  add(DivergenceByLength(summary));
  for (const auto& [length, by] : summary.windows) add(DivergenceByBytes(summary, length, by));
  return figures;
}

}  // namespace litecache::eval
