#include <bit>
#include <cstdlib>

#include "base/error.h"
#include "ops/select/hash_cpu.h"

namespace litecache::ops::cpu {

HashQuery MakeHashQuery(const uint32_t* codes, int64_t group, int64_t words) {
  LC_CHECK(words <= HashQuery::kMaxWords && group < (1 << HashQuery::kMaxPlanes));
  HashQuery query{.words = words, .shift = group % 2 == 0 ? 1 : 0};
  query.planes = std::bit_width(static_cast<uint64_t>(group >> query.shift));
  for (int64_t w = 0; w < words; ++w) {
    const auto word = static_cast<size_t>(w);
    for (uint32_t bit = 0; bit < 32; ++bit) {
      int64_t set = 0;
      for (int64_t j = 0; j < group; ++j) set += codes[j * words + w] >> bit & 1;
      const bool majority = 2 * set > group;
      query.base += static_cast<int32_t>(majority ? group - set : set);
      query.majority[word] |= static_cast<uint32_t>(majority) << bit;
      const auto weight = static_cast<uint32_t>(std::abs(group - 2 * set) >> query.shift);
      for (int64_t p = 0; p < query.planes; ++p) {
        query.plane[static_cast<size_t>(p)][word] |= (weight >> p & 1) << bit;
      }
    }
  }
  return query;
}

}  // namespace litecache::ops::cpu
