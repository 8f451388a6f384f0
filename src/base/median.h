// The median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace litecache {

// Of one value or more; of an even number the upper one of the middle two.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace litecache
