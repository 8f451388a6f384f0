// The matrix of KeysRotation, written out as its header describes it.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "ops/select/keys_select.h"

namespace litecache::ops {

// [head_dim][head_dim].
inline std::vector<double> KeysMatrix(int64_t head_dim) {
  const std::vector<float> rotation = KeysRotation(head_dim);
  const auto at = [&](int64_t i) { return static_cast<double>(rotation[static_cast<size_t>(i)]); };
  int64_t run = 1;
  while (head_dim % (2 * run) == 0) run *= 2;
  const int64_t runs = head_dim / run;
  std::vector<double> matrix;
  for (int64_t c = 0; c < head_dim; ++c) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const auto both = static_cast<uint64_t>(c % run & i % run);
      const double sign = std::popcount(both) % 2 == 0 ? 1 : -1;
      matrix.push_back(sign * at(c) * at(head_dim + c / run * runs + i / run));
    }
  }
  return matrix;
}

}  // namespace litecache::ops
