// Reports of evaluations.
#pragma once

#include <string>

#include "eval/run/results.h"

namespace litecache::eval {

// Throws what Summarize throws, and InvalidArgument for files without results.
std::string MarkdownReport(const Results& results);

// A self-contained page: tables, and charts as SVG, for light and dark mode.
std::string HtmlReport(const Results& results);

}  // namespace litecache::eval
