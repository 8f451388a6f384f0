// Scores of generated answers: RULER's two metrics, and all suites' metrics by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace litecache::eval {

// Share of `references` that `prediction` contains, ignoring case (with full Unicode lower-casing),
// 0 to 1. Throws InvalidArgument without references.
double StringMatchAll(std::string_view prediction, const std::vector<std::string>& references);

// 1 if `prediction` contains any of `references`, ignoring case, else 0. Throws InvalidArgument
// without references.
double StringMatchPart(std::string_view prediction, const std::vector<std::string>& references);

// The names of all metrics, as used by samples.
std::vector<std::string_view> MetricNames();

// Whether the metric is for classification.
bool NeedsClasses(std::string_view metric);

// The value of the metric called `metric`, 0 to 1, the best over the references; each metric cleans
// up the prediction as its benchmark does. `classes`: the labels, only for classification. Throws
// InvalidArgument for an unknown name (listing the names), without references, or for references
// that the metric cannot read.
double Score(std::string_view metric, std::string_view prediction,
             const std::vector<std::string>& references,
             const std::vector<std::string>& classes = {});

// Cleans a prediction as RULER's evaluation does: control characters (below 0x20) become newlines,
// and white space at both ends is removed.
std::string CleanPrediction(std::string_view prediction);

}  // namespace litecache::eval
