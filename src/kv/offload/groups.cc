#include "kv/offload/groups.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace litecache::kv::offload {

std::vector<Group> MakeGroups(std::vector<Part>* parts, int64_t groups) {
  const auto count = static_cast<int64_t>(parts->size());
  LC_CHECK(groups >= 1);
  groups = std::min(groups, count);
  // A single group keeps the step's order, so that lanes change as rarely as the step's sequences.
  if (groups > 1) {
    std::stable_sort(parts->begin(), parts->end(),
                     [](const Part& a, const Part& b) { return a.n() > b.n(); });
  }
  std::vector<int64_t> group_of(parts->size());
  for (int64_t i = 0; i < count; ++i) {
    (*parts)[static_cast<size_t>(i)].lane = i / groups;
    group_of[static_cast<size_t>(i)] = i % groups;
  }
  std::vector<size_t> order(parts->size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t i) {
    return group_of[i] + ((*parts)[i].sequence.decode ? 0 : groups);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<Part> sorted;
  sorted.reserve(parts->size());
  std::vector<Group> result(static_cast<size_t>(groups));
  int64_t next = 0;
  const auto take = [&](int64_t key, int64_t* begin, int64_t* end) {
    *begin = next;
    while (next < count && place(order[static_cast<size_t>(next)]) == key) {
      sorted.push_back((*parts)[order[static_cast<size_t>(next++)]]);
    }
    *end = next;
  };
  for (int64_t g = 0; g < groups; ++g) {
    take(g, &result[static_cast<size_t>(g)].decode_begin,
         &result[static_cast<size_t>(g)].decode_end);
  }
  for (int64_t g = 0; g < groups; ++g) {
    take(groups + g, &result[static_cast<size_t>(g)].prefill_begin,
         &result[static_cast<size_t>(g)].prefill_end);
  }
  *parts = std::move(sorted);
  return result;
}

}  // namespace litecache::kv::offload
