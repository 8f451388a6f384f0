#include "profile/top_rows.h"

#include <algorithm>
#include <functional>

namespace litecache::profile {

void SelectLargest(const float* scores, int64_t count, int64_t k, int64_t begin,
                   std::vector<float>& scratch, std::vector<int32_t>* positions) {
  positions->clear();
  if (k <= 0) return;
  scratch.assign(scores, scores + count);
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), std::greater<>());
  const float limit = scratch[static_cast<size_t>(k - 1)];
  const auto above = std::count_if(scores, scores + count, [&](float s) { return s > limit; });
  int64_t ties = k - above;
  for (int64_t i = 0; i < count; ++i) {
    if (scores[i] > limit || (scores[i] == limit && ties-- > 0)) {
      positions->push_back(static_cast<int32_t>(begin + i));
    }
  }
}

int64_t CountCommon(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    common += a[i] == b[j];
    const bool advance_a = a[i] <= b[j], advance_b = b[j] <= a[i];
    i += advance_a;
    j += advance_b;
  }
  return common;
}

}  // namespace litecache::profile
