#include "eval/report/svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/markup.h"

namespace litecache::eval {
namespace {

constexpr double kWidth = 640, kHeight = 340;
constexpr double kLeft = 62, kRight = 20, kTop = 14, kBottom = 48;
constexpr size_t kColours = 8;  // in the page's style sheet

std::string ClassOf(size_t colour) {
  return colour == 0 ? "c0" : fmt::format("c{}", (colour - 1) % kColours + 1);
}

std::string Text(double x, double y, const std::string& anchor, const std::string& text,
                 const std::string& cls = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, cls.empty() ? "" : " class=\"" + cls + "\"", EscapeMarkup(text));
}

// Maps values to pixels along one axis.
class Scale {
 public:
  // margin: space between the data and the frame, as a share of the range.
  Scale(bool logarithmic, double low, double high, double begin, double end, double margin)
      : logarithmic_(logarithmic), begin_(begin), end_(end) {
    low_ = Value(low);
    high_ = Value(high);
    if (high_ - low_ < 1e-12) {
      const double space = std::max(std::abs(low_) * 0.05, 0.5);
      low_ -= space;
      high_ += space;
    }
    const double range = high_ - low_;
    low_ -= margin * range;
    high_ += margin * range;
  }
  double operator()(double value) const {
    return begin_ + (Value(value) - low_) / (high_ - low_) * (end_ - begin_);
  }
  bool Shows(double value) const {
    return Value(value) >= low_ - 1e-9 && Value(value) <= high_ + 1e-9;
  }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double Value(double value) const {
    return logarithmic_ ? std::log2(std::max(value, 1e-9)) : value;
  }
  bool logarithmic_;
  double begin_, end_, low_ = 0, high_ = 1;
};

std::string Frame(const Chart& chart, const Scale& x, const Scale& y) {
  std::string svg;
  for (const double tick : RoundTicks(y.low(), y.high(), 6)) {
    if (tick > chart.last_y_tick.value_or(tick) + 1e-9 || (chart.from_zero && tick < -1e-9)) {
      continue;
    }
    svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       kLeft, kWidth - kRight, y(tick), y(tick));
    svg += Text(kLeft - 8, y(tick) + 4, "end", fmt::format("{:g}", tick), "tick");
  }
  for (const double tick : chart.x_ticks) {
    if (!x.Shows(tick)) continue;
    svg +=
        fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                    x(tick), kHeight - kBottom, kHeight - kBottom + 4);
    svg += Text(x(tick), kHeight - kBottom + 18, "middle", chart.x_format(tick), "tick");
  }
  svg += fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", kLeft,
                     kWidth - kRight, kHeight - kBottom, kHeight - kBottom);
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", chart.x_title, "title");
  return svg + fmt::format(
                   "<text class=\"title\" text-anchor=\"middle\" transform=\"translate(14 {:.1f}) "
                   "rotate(-90)\">{}</text>\n",
                   (kTop + kHeight - kBottom) / 2, EscapeMarkup(chart.y_title));
}

std::string Path(const std::vector<Point>& points, const Scale& x, const Scale& y) {
  std::string path;
  for (const Point& point : points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x(point.x), y(point.y));
  }
  return path;
}

std::string Dot(const Point& point, const std::string& cls, const std::string& name, const Scale& x,
                const Scale& y) {
  return fmt::format(
      "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}</title>"
      "</circle>\n",
      cls, x(point.x), y(point.y),
      EscapeMarkup(point.label.empty() ? name : name + ": " + point.label));
}

// Labels of scattered points: placed above them, off the lines that cross the chart; moved down
// where they would overlap.
std::string Labels(const Chart& chart, const Scale& x, const Scale& y) {
  struct Label {
    double x, y;
    bool left;
    std::string text;
  };
  std::vector<Label> labels;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      const bool left = x(point.x) > kWidth * 0.75;
      labels.push_back({x(point.x) + (left ? 4 : -4), y(point.y) - 8, left, series.name});
    }
  }
  std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.y < b.y; });
  constexpr double kLine = 13, kNear = 120;
  std::string svg;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (std::abs(labels[i].x - labels[j].x) < kNear && labels[i].y < labels[j].y + kLine) {
        labels[i].y = labels[j].y + kLine;
      }
    }
    svg += Text(labels[i].x, labels[i].y, labels[i].left ? "end" : "start", labels[i].text, "tick");
  }
  return svg;
}

std::string Legend(const Chart& chart) {
  std::string html = "<ul class=\"legend\">";
  if (chart.reference) {
    html += "<li><span class=\"key dashed\"></span>full attention</li>";
  }
  if (!chart.lines) return html + "</ul>\n";  // points are labelled with their names
  for (const Series& series : chart.series) {
    html += fmt::format("<li><span class=\"key {}\"></span>{}</li>", ClassOf(series.colour),
                        EscapeMarkup(series.name));
  }
  return html + "</ul>\n";
}

}  // namespace

std::vector<double> RoundTicks(double low, double high, int count) {
  const double step = (high - low) / std::max(count, 1);
  // A range too small for doubles has no ticks.
  if (!std::isfinite(step) || step <= 1e-10 * std::max(std::abs(low), std::abs(high))) return {low};
  const double power = std::pow(10, std::floor(std::log10(step)));
  const double factor = step / power;
  const double round = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / round - 1e-6), last = high / round + 1e-6;
  // "+ 0.0" avoids -0.
  for (int i = 0; first + i <= last; ++i) ticks.push_back((first + i) * round + 0.0);
  return ticks;
}

std::string DrawChart(const Chart& chart) {
  double low_x = std::numeric_limits<double>::infinity(), high_x = -low_x;
  double low_y = low_x, high_y = high_x;
  bool any = false;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      any = true;
      low_x = std::min(low_x, point.x);
      high_x = std::max(high_x, point.x);
      low_y = std::min(low_y, point.y);
      high_y = std::max(high_y, point.y);
    }
  }
  if (!any) return "";
  if (chart.reference) {
    low_y = std::min(low_y, *chart.reference);
    high_y = std::max(high_y, *chart.reference);
  }
  if (!chart.lines) low_x = std::min(low_x, 0.0);
  if (chart.from_zero) low_y = std::min(low_y, 0.0);
  const Scale x(chart.logarithmic, low_x, high_x, kLeft, kWidth - kRight, 0.04);
  const Scale y(false, low_y, high_y, kHeight - kBottom, kTop, 0.06);
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, kHeight,
                  EscapeMarkup(chart.y_title + " against " + chart.x_title));
  svg += Frame(chart, x, y);
  if (chart.reference) {
    svg +=
        fmt::format("<line class=\"reference\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                    kLeft, kWidth - kRight, y(*chart.reference), y(*chart.reference));
  }
  if (chart.front.size() > 1) {
    svg += fmt::format("<path class=\"front\" d=\"{}\"/>\n", Path(chart.front, x, y));
  }
  for (const Series& series : chart.series) {
    const std::string cls = ClassOf(series.colour);
    if (chart.lines && series.points.size() > 1) {
      svg += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", cls, Path(series.points, x, y));
    }
    for (const Point& point : series.points) svg += Dot(point, cls, series.name, x, y);
  }
  if (!chart.lines) svg += Labels(chart, x, y);
  return svg + "</svg>\n" + Legend(chart);
}

}  // namespace litecache::eval
