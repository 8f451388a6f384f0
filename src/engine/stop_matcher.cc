#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace litecache::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {}

bool StopMatcher::Add(std::string_view text, std::string* out) {
  if (matched_ >= 0) return true;
  if (stops_.empty()) {
    out->append(text);
    return false;
  }
  size_t end = held_.size();
  held_.append(text);
  while (++end <= held_.size()) {
    size_t longest = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      if (stop.size() > longest && std::string_view(held_).substr(0, end).ends_with(stop)) {
        longest = stop.size();
        matched_ = static_cast<int>(i);
      }
    }
    if (longest > 0) {
      out->append(held_, 0, include_ ? end : end - longest);
      held_.clear();
      return true;
    }
  }
  const size_t certain = held_.size() - Undecided();
  out->append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

size_t StopMatcher::Undecided() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  return longest;
}

void StopMatcher::Flush(std::string* out) {
  if (matched_ < 0) out->append(held_);
  held_.clear();
}

}  // namespace litecache::engine
