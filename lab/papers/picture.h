// Pictures of measurements as SVG files of their own.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace litecache::bench::papers {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};

// Lines over logarithmic axes (both: what is measured here spans decades). ticks: of x, with their
// names. Curves named alike up to a comma are forms of one system. Points that are not above 0 are
// left out. Empty for curves without points.
std::string DrawLines(const std::string& title, const std::string& x_name,
                      const std::string& y_name,
                      const std::vector<std::pair<double, std::string>>& ticks,
                      const std::vector<Curve>& curves);

// A horizontal bar a row, of parts side by side, its sum beside it; one of more than four times the
// median is cut. values: [rows][parts], >= 0.
std::string DrawBars(const std::string& title, const std::string& x_name,
                     const std::vector<std::string>& rows, const std::vector<std::string>& parts,
                     const std::vector<std::vector<double>>& values);

}  // namespace litecache::bench::papers
