// The SVG of a report's charts.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace litecache::eval {

struct Point {
  double x = 0;
  double y = 0;
  std::string label;  // on hovering
};

struct Series {
  std::string name;
  size_t colour = 0;  // 0: the reference's; from 1 on: one of the page's
  std::vector<Point> points;
};

struct Chart {
  std::string x_title, y_title;
  bool logarithmic = false;  // the x axis, whose values are positive
  std::vector<double> x_ticks;
  std::string (*x_format)(double value) = nullptr;
  // Lines join a series' points; otherwise each point has its series' name beside it.
  bool lines = true;
  bool from_zero = false;             // the y axis
  std::optional<double> last_y_tick;  // where the values end, though the frame does not
  std::optional<double> reference;    // a line across the chart, "full attention"
  std::vector<Point> front;           // joined by a thin line
  std::vector<Series> series;
};

// An <svg> element and a legend; "" for a chart without points.
std::string DrawChart(const Chart& chart);

// About `count` round numbers that lie within [low, high].
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace litecache::eval
