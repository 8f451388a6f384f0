// The charts of a report: SVG for an HTML page, whose CSS variables give the colours, so that one
// drawing serves light and dark.
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

// Scores and divergence against length and against the bytes that moved, needles found by depth and
// length: those that the results have figures for.
std::vector<Figure> MakeFigures(const Summary& summary, const Results& results);

}  // namespace litecache::eval
