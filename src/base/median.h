// The median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace litecache {

// Takes at least one value; for an even number of values, returns the upper of the middle two.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace litecache
