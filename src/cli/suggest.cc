#include "cli/suggest.h"

#include <algorithm>

namespace litecache::cli {

int EditDistance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int> cost((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> int& { return cost[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // One typing error in a short word, two in a long one; or a prefix of exactly one candidate.
  const int limit = word.size() >= 6 ? 2 : 1;
  std::string best;
  int best_distance = limit + 1;
  for (const auto& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  for (const auto& candidate : candidates) {
    if (word.size() < 3 || !candidate.starts_with(word)) continue;
    if (!best.empty()) return "";
    best = candidate;
  }
  return best;
}

}  // namespace litecache::cli
