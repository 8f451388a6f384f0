// The charts of a report: SVG for an HTML page, coloured by the page's CSS variables, so that one
// drawing works in light and dark mode.
#pragma once

#include <string>
#include <vector>

#include "eval/report/summary.h"

namespace litecache::eval {

struct Figure {
  std::string title;
  std::string note;
  std::string html;  // <svg> elements and legends
};

// Scores and divergence against length and against transferred bytes, and needles found by depth
// and length; only the charts for which the results have data.
std::vector<Figure> MakeFigures(const Summary& summary, const Results& results);

}  // namespace litecache::eval
