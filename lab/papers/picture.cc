#include "lab/papers/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/median.h"
#include "lab/papers/svg.h"

namespace litecache::bench::papers {
namespace {

// Okabe and Ito's, told apart without colour vision, and others beside them.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000", "#999999",
                                    "#666633", "#882255", "#332288", "#b8b000"};

std::string ColourOf(size_t index) { return kColours[index % std::size(kColours)]; }

constexpr double kLeft = 70, kTop = 44, kWidth = 460, kHeight = 300, kNames = 260;
constexpr double kBarNames = 110;
constexpr double kLine = 18;
constexpr double kLetter = 6;  // of 11 pixels, about

// Forms of one system ("litecache", "litecache, no prefetch") have its colour and dashes of their
// own.
struct Look {
  std::string colour, dashes;
};

std::vector<Look> LooksOf(const std::vector<Curve>& curves) {
  constexpr const char* kDashes[] = {"", "8 4", "2 3", "8 3 2 3", "14 4"};
  std::vector<std::pair<std::string, size_t>> systems;  // and how many forms they have so far
  std::vector<Look> looks;
  for (const Curve& curve : curves) {
    const std::string system = curve.name.substr(0, curve.name.find(','));
    size_t i = 0;
    while (i < systems.size() && systems[i].first != system) ++i;
    if (i == systems.size()) systems.emplace_back(system, 0);
    looks.push_back({ColourOf(i), kDashes[systems[i].second++ % std::size(kDashes)]});
  }
  return looks;
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
  const int step = std::max(1, static_cast<int>(std::ceil((high - low) / 8)));
  for (int power = static_cast<int>(low); power <= static_cast<int>(high); power += step) {
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
  const std::vector<Look> looks = LooksOf(curves);
  double name_y = kTop + 12;
  for (size_t i = 0; i < curves.size(); ++i) {
    const auto& [colour, dashes] = looks[i];
    std::vector<std::pair<double, double>> line;
    for (const auto& [x, y] : curves[i].points) {
      if (!(y > 0)) continue;
      line.emplace_back(at_x(x), at_y(y));
      svg.Circle(line.back().first, line.back().second, 3.5, colour);
    }
    if (line.empty()) continue;
    if (line.size() > 1) svg.Polyline(line, colour, dashes);
    constexpr double kName = kLeft + kWidth + 14;
    svg.Polyline({{kName, name_y - 4}, {kName + 28, name_y - 4}}, colour, dashes);
    svg.Text(kName + 34, name_y, 11, curves[i].name);
    name_y += kLine;
  }
  return svg.Finish();
}

std::string DrawBars(const std::string& title, const std::string& x_name,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values) {
  constexpr double kBar = 22, kGap = 10, kSum = 46;
  // Beside a bar that is much longer than the others nothing would be seen of them.
  constexpr double kCutAt = 4;  // medians
  size_t letters = 0;
  for (const std::string& row : rows) letters = std::max(letters, row.size());
  const double labels = std::max(60.0, kLetter * static_cast<double>(letters) + 12);
  std::vector<double> sums;
  for (const auto& row : values) {
    sums.push_back(0);
    for (const double value : row) sums.back() += value;
  }
  const double longest = sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end());
  if (!(longest > 0)) return "";
  const double most = std::min(longest, kCutAt * Median(sums));
  const double scale = kWidth / most;
  const double height = static_cast<double>(rows.size()) * (kBar + kGap);
  const double right = labels + kWidth + kSum;
  Svg svg(right + kBarNames,
          kTop + std::max(height, static_cast<double>(parts.size()) * kLine) + 52);
  svg.Text(labels, 24, 15, title);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * (kBar + kGap);
    svg.Text(labels - 8, y + kBar / 2 + 4, 11, rows[r], Anchor::kEnd);
    double x = labels;
    for (size_t p = 0; p < parts.size(); ++p) {
      const double value = values[r][p];
      const double width = std::min(value * scale, labels + kWidth - x);
      if (width <= 0) continue;
      svg.Rectangle(x, y, width, kBar, ColourOf(p),
                    fmt::format("{}, {}: {:.4g}", rows[r], parts[p], value));
      x += width;
    }
    if (sums[r] > most) {  // cut
      for (const double gap : {16.0, 10.0}) {
        svg.Polyline({{x - gap - 3, y + kBar + 1}, {x - gap + 3, y - 1}}, "#ffffff");
      }
    }
    svg.Text(x + 4, y + kBar / 2 + 4, 10, fmt::format("{:.4g}", sums[r]));
  }
  svg.Text(labels + kWidth / 2, kTop + height + 24, 12, x_name, Anchor::kMiddle);
  double y = kTop + 12;
  for (size_t p = 0; p < parts.size(); ++p, y += kLine) {
    svg.Rectangle(right + 6, y - 9, 10, 10, ColourOf(p));
    svg.Text(right + 22, y, 11, parts[p]);
  }
  return svg.Finish();
}

}  // namespace litecache::bench::papers
