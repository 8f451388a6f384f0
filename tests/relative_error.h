// Relative error of an array.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

namespace litecache::testing {

// The square root of the sum of squared differences of two arrays (spans or vectors of numbers);
// infinite if one value is NaN.
template <class Got, class Want>
double Distance(const Got& got, const Want& want) {
  EXPECT_EQ(got.size(), want.size());
  double sum = 0;
  for (size_t i = 0; i < want.size() && i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    sum += difference * difference;
  }
  return std::isnan(sum) ? HUGE_VAL : std::sqrt(sum);
}

// The distance relative to the norm of `want`: 1 for zeros. Attention averages values that cancel,
// so its outputs are much smaller than its inputs; a bound derived from the largest value would
// accept zeros.
template <class Got, class Want>
double RelativeError(const Got& got, const Want& want) {
  double sum = 0;
  for (const auto x : want) sum += static_cast<double>(x) * static_cast<double>(x);
  return Distance(got, want) / std::sqrt(sum);
}

}  // namespace litecache::testing
