#include "bench/papers/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "profile/svg.h"

namespace litecache::bench::papers {
namespace {

using profile::Anchor;
using profile::Svg;

// Okabe and Ito's, told apart without colour vision, and others beside them.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000", "#999999",
                                    "#666633", "#882255", "#332288", "#b8b000"};

std::string ColourOf(size_t index) { return kColours[index % std::size(kColours)]; }

constexpr double kLeft = 70, kTop = 44, kWidth = 460, kHeight = 300, kNames = 220;
constexpr double kLine = 18;

void Names(Svg& svg, const std::vector<std::string>& names) {
  double y = kTop + 12;
  for (size_t i = 0; i < names.size(); ++i, y += kLine) {
    svg.Rectangle(kLeft + kWidth + 14, y - 9, 10, 10, ColourOf(i));
    svg.Text(kLeft + kWidth + 30, y, 11, names[i]);
  }
}

}  // namespace

std::string DrawLines(const std::string& title, const std::string& x_name,
                      const std::string& y_name,
                      const std::vector<std::pair<double, std::string>>& ticks,
                      const std::vector<Curve>& curves) {
  double x_low = std::numeric_limits<double>::infinity(), x_high = 0;
  double y_low = x_low, y_high = 0;
  for (const auto& [x, name] : ticks) {
    x_low = std::min(x_low, x);
    x_high = std::max(x_high, x);
  }
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      if (!(y > 0)) continue;
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
  }
  if (!(y_high > 0)) return "";
  // Powers of two around the values.
  const double low = std::floor(std::log2(y_low) - 0.01),
               high = std::ceil(std::log2(y_high) + 0.01);
  const double left = std::log2(x_low) - 0.1, right = std::log2(x_high) + 0.1;
  const auto at_x = [&](double x) {
    return kLeft + kWidth * (std::log2(x) - left) / (right - left);
  };
  const auto at_y = [&](double y) { return kTop + kHeight * (high - std::log2(y)) / (high - low); };
  Svg svg(kLeft + kWidth + kNames, kTop + kHeight + 52);
  svg.Text(kLeft, 24, 15, title);
  const double step = std::max(1.0, std::ceil((high - low) / 8));
  for (double power = low; power <= high; power += step) {
    const double value = std::exp2(power);
    svg.Line(kLeft, at_y(value), kLeft + kWidth, at_y(value), "#e4e4e4");
    svg.Text(kLeft - 6, at_y(value) + 4, 11, fmt::format("{:.4g}", value), Anchor::kEnd);
  }
  for (const auto& [x, name] : ticks) {
    svg.Line(at_x(x), kTop, at_x(x), kTop + kHeight, "#e4e4e4");
    svg.Text(at_x(x), kTop + kHeight + 16, 11, name, Anchor::kMiddle);
  }
  svg.Frame(kLeft, kTop, kWidth, kHeight);
  svg.Text(kLeft + kWidth / 2, kTop + kHeight + 38, 12, x_name, Anchor::kMiddle);
  svg.Text(18, kTop + kHeight / 2, 12, y_name, Anchor::kMiddle, "#222222", /*turned=*/true);
  std::vector<std::string> names;
  for (const Curve& curve : curves) {
    const std::string colour = ColourOf(names.size());
    std::vector<std::pair<double, double>> line;
    for (const auto& [x, y] : curve.points) {
      if (!(y > 0)) continue;
      line.emplace_back(at_x(x), at_y(y));
      svg.Circle(line.back().first, line.back().second, 3.5, colour);
    }
    if (line.size() > 1) svg.Polyline(line, colour);
    if (!line.empty()) names.push_back(curve.name);
  }
  Names(svg, names);
  return svg.Finish();
}

std::string DrawBars(const std::string& title, const std::string& x_name,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values) {
  constexpr double kBar = 22, kGap = 10, kLabels = 150;
  double most = 0;
  for (const auto& row : values) {
    double sum = 0;
    for (const double value : row) sum += value;
    most = std::max(most, sum);
  }
  if (!(most > 0)) return "";
  const double scale = (kLeft + kWidth - kLabels) / most;
  const double height = static_cast<double>(rows.size()) * (kBar + kGap);
  Svg svg(kLeft + kWidth + kNames,
          kTop + std::max(height, static_cast<double>(parts.size()) * kLine) + 52);
  svg.Text(kLabels, 24, 15, title);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * (kBar + kGap);
    svg.Text(kLabels - 8, y + kBar / 2 + 4, 11, rows[r], Anchor::kEnd);
    double x = kLabels, sum = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const double value = values[r][p];
      sum += value;
      if (value <= 0) continue;
      svg.Rectangle(x, y, value * scale, kBar, ColourOf(p),
                    fmt::format("{}, {}: {:.4g}", rows[r], parts[p], value));
      x += value * scale;
    }
    // Beside the bar, or in the picture's margin where it is the longest.
    svg.Text(std::min(x + 4, kLeft + kWidth - 30), y + kBar / 2 + 4, 10,
             fmt::format("{:.4g}", sum));
  }
  svg.Text((kLabels + kLeft + kWidth) / 2, kTop + height + 24, 12, x_name, Anchor::kMiddle);
  Names(svg, parts);
  return svg.Finish();
}

}  // namespace litecache::bench::papers
