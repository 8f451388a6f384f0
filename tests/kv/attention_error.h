// What rounding may make of attention's outputs.
#pragma once

#include "base/dtype.h"
#include "relative_error.h"

namespace litecache::kv {

// Of the outputs of a token, as a share of their size (testing::RelativeError). bf16 rounds queries
// and probabilities, each by up to 2^-9: 0.016 was the largest seen on a CPU, and 1.3e-6 with f32.
inline double AttentionTolerance(DType rows) { return rows == DType::kBF16 ? 0.05 : 1e-4; }

// What a code of host rows rounds of normal values, the root of the mean square, where heads have
// 32 channels: a step's over the root of 12.
struct CodeRounding {
  const char* format;
  double rounding;

  // What that makes of outputs, as a share of their size, where queries have elements of size 2:
  // values are rounded, and scores by 2 of keys'.
  double OfOutputs() const { return rounding * std::sqrt(1 + 2 * 2); }
};

// Of 32 normal values the largest is about 2.4, 127 steps of int8, and their range about 4.1, 15
// steps of int4. fp8 has 8 steps between powers of two, and a value's mean square there is 2.2 of
// the lower one's.
inline const CodeRounding kCodeRoundings[] = {{"int8", 2.4 / 127 / std::sqrt(12)},
                                              {"fp8", 0.125 / std::sqrt(12 * 2.2)},
                                              {"int4", 4.1 / 15 / std::sqrt(12)}};

}  // namespace litecache::kv
