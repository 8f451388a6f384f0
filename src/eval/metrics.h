// Scores of generated answers: RULER's two, and by name every metric of every suite.
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

// Every metric there is, by the name samples use.
std::vector<std::string_view> MetricNames();

// Whether the metric is one of classification.
bool NeedsClasses(std::string_view metric);

// The metric called `metric`, 0 to 1, the best over the references; each does the clean-up of the
// prediction that its benchmark does. `classes`: the labels, for classification only. Throws
// InvalidArgument for another name (listing the names), without references, or for references that
// the metric cannot read.
double Score(std::string_view metric, std::string_view prediction,
             const std::vector<std::string>& references,
             const std::vector<std::string>& classes = {});

// A prediction as RULER's evaluation reads it: control characters (below 0x20) become newlines,
// white space at both ends goes.
std::string CleanPrediction(std::string_view prediction);

}  // namespace litecache::eval
