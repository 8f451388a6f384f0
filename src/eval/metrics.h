// Scores of generated answers, as RULER defines them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

// Share of `references` that `prediction` contains, letter case aside (ASCII and, through full
// Unicode lower-casing, everything else). 0 to 1; throws InvalidArgument without references.
double StringMatchAll(std::string_view prediction, const std::vector<std::string>& references);

// 1 if `prediction` contains any of `references`, letter case aside, else 0. Throws InvalidArgument
// without references.
double StringMatchPart(std::string_view prediction, const std::vector<std::string>& references);

// The metric a sample names: "string_match_all" or "string_match_part". Throws InvalidArgument for
// another name.
double Score(std::string_view metric, std::string_view prediction,
             const std::vector<std::string>& references);

// A prediction as RULER's evaluation reads it: control characters (below 0x20) become newlines,
// white space at both ends goes.
std::string CleanPrediction(std::string_view prediction);

}  // namespace litecache::eval
