// The rows that an exact retriever selects, and sets of rows.
#pragma once

#include <cstdint>
#include <vector>

namespace litecache::profile {

// Positions begin + i of the k largest of scores[0, count), ascending; among equal scores the lower
// positions win. k <= count. `scratch` is reused memory.
void SelectLargest(const float* scores, int64_t count, int64_t k, int64_t begin,
                   std::vector<float>& scratch, std::vector<int32_t>* positions);

// Number of positions in both of two ascending lists.
int64_t CountCommon(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace litecache::profile
