#include "eval/ruler/random.h"

#include <unordered_map>

#include "base/error.h"

namespace litecache::eval {

std::vector<int64_t> Random::Sample(int64_t bound, int64_t count) {
  LC_CHECK(count <= bound, "{} distinct numbers below {}", count, bound);
  // Fisher-Yates on a sparse array: only displaced entries are stored.
  std::unordered_map<int64_t, int64_t> moved;
  std::vector<int64_t> sample;
  sample.reserve(static_cast<size_t>(count));
  const auto at = [&](int64_t i) {
    const auto found = moved.find(i);
    return found == moved.end() ? i : found->second;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t j = i + Below(bound - i);
    sample.push_back(at(j));
    moved[j] = at(i);
  }
  return sample;
}

}  // namespace litecache::eval
