// Bounds on the rounding errors of attention's outputs.
#pragma once

#include "base/dtype.h"
#include "relative_error.h"

namespace litecache::kv {

// A token's error relative to the outputs' size (testing::RelativeError). bf16 rounds queries and
// probabilities, each by up to 2^-9: the largest error seen on a CPU was 0.016, and 1.3e-6 with
// f32.
inline double AttentionTolerance(DType rows) { return rows == DType::kBF16 ? 0.05 : 1e-4; }

// The rounding error that a code of host rows adds to normally distributed values (root mean
// square) with 32 channels per head: the error of one step is its width divided by the root of 12.
struct CodeRounding {
  const char* format;
  double rounding;

  // The error of the outputs, relative to their size, for queries with elements of size 2: values
  // are rounded, and scores have 2 times the rounding of keys.
  double OfOutputs() const { return rounding * std::sqrt(1 + 2 * 2); }
};

// The largest of 32 normal values is about 2.4, which is 127 steps of int8, and their range is
// about 4.1, 15 steps of int4. fp8 has 8 steps between powers of two, and the mean square of a
// value in that range is 2.2 times that of the lower power.
inline const CodeRounding kCodeRoundings[] = {{"int8", 2.4 / 127 / std::sqrt(12)},
                                              {"fp8", 0.125 / std::sqrt(12 * 2.2)},
                                              {"int4", 4.1 / 15 / std::sqrt(12)}};

}  // namespace litecache::kv
