// Charts as SVG for an HTML page: colours are the page's CSS variables, so that one drawing serves
// light and dark.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace litecache::eval {

struct Point {
  double x = 0;
  double y = 0;
  std::string label;  // shown beside it in a scatter chart, on hovering in a line chart
};

struct Series {
  std::string name;
  size_t colour = 0;  // 0: the reference's; from 1 on: one of the page's
  std::vector<Point> points;
};

struct Axis {
  std::string title;
  bool logarithmic = false;   // positive values only
  std::vector<double> ticks;  // empty: round numbers over the data
  std::string (*format)(double value) = nullptr;
  std::optional<double> least;      // the range reaches down to it; else to the data
  std::optional<double> last_tick;  // where the values end, though the frame does not
};

struct Chart {
  Axis x, y;
  std::vector<Series> series;
  // Lines join a series' points; otherwise each point has its label beside it.
  bool lines = true;
  // A line at this height across the chart, with its name.
  std::optional<double> reference;
  std::string reference_name;
  // Joins these points, in this order, by a thin line (a Pareto front).
  std::vector<Point> front;
};

// An <svg> element of its own; "" for a chart without points.
std::string DrawChart(const Chart& chart);

struct HeatMap {
  std::string title;
  std::vector<std::string> columns, rows;
  // [row][column], 0 to 1; nullopt where there is no figure.
  std::vector<std::vector<std::optional<double>>> cells;
  std::string column_title, row_title;
};

std::string DrawHeatMap(const HeatMap& map);

// About `count` round numbers that lie within [low, high].
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace litecache::eval
