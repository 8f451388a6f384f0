// Draws the SVG of a report's charts.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace litecache::eval {

struct Point {
  double x = 0;
  double y = 0;
  std::string label;  // shown on hovering
};

struct Series {
  std::string name;
  size_t colour = 0;  // 0: the reference's; from 1 on: one of the page's colours
  std::vector<Point> points;
};

struct Chart {
  std::string x_title, y_title;
  bool logarithmic = false;  // of the x axis, whose values must be positive
  std::vector<double> x_ticks;
  std::string (*x_format)(double value) = nullptr;
  // Lines join the points of a series; otherwise each point is labelled with its series' name.
  bool lines = true;
  bool from_zero = false;             // the y axis
  std::optional<double> last_y_tick;  // the end of the values, if the frame extends further
  std::optional<double> reference;    // a line across the chart, "full attention"
  std::vector<Point> front;           // joined by a thin line
  std::vector<Series> series;
};

// An <svg> element and a legend; "" for a chart without points.
std::string DrawChart(const Chart& chart);

// About `count` round numbers within [low, high].
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace litecache::eval
