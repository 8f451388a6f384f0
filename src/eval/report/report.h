// Reports of evaluations.
#pragma once

#include <string>

#include "eval/run/results.h"

namespace litecache::eval {

// Throws what Summarize throws, and InvalidArgument for files without results.
std::string MarkdownReport(const Results& results);

// One page with everything in it: tables, charts as SVG, light and dark.
std::string HtmlReport(const Results& results);

}  // namespace litecache::eval
