#include "engine/draft/lookup.h"

#include <algorithm>

namespace litecache::engine {

LookupDrafter::LookupDrafter(std::span<const int32_t> prompt) {
  tokens_.reserve(prompt.size() + 256);
  earlier_.reserve(prompt.size() + 257);
  earlier_.push_back(0);
  for (const int32_t token : prompt) Add(token);
}

void LookupDrafter::Add(int32_t token) {
  tokens_.push_back(token);
  earlier_.push_back(0);
  const size_t end = tokens_.size();
  if (end < 2) return;
  const uint64_t pair = uint64_t{static_cast<uint32_t>(tokens_[end - 2])} << 32 |
                        static_cast<uint32_t>(tokens_[end - 1]);
  int64_t& latest = latest_[pair];
  earlier_[end] = latest;
  latest = static_cast<int64_t>(end);
}

int64_t LookupDrafter::Propose(int64_t most, std::vector<int32_t>* draft) const {
  draft->clear();
  const auto end = static_cast<int64_t>(tokens_.size());
  int64_t best = 0, from = 0, candidate = earlier_[static_cast<size_t>(end)];
  for (int i = 0; i < kCandidates && candidate > 0 && best < kLongest; ++i) {
    const int64_t limit = std::min(kLongest, candidate);
    int64_t match = kShortest;
    while (match < limit && tokens_[static_cast<size_t>(candidate - 1 - match)] ==
                                tokens_[static_cast<size_t>(end - 1 - match)]) {
      ++match;
    }
    if (match > best) {
      best = match;
      from = candidate;
    }
    candidate = earlier_[static_cast<size_t>(candidate)];
  }
  if (best == 0) return 0;
  for (int64_t i = 0; i < most; ++i) {
    const int64_t at = from + i;
    draft->push_back(at < end ? tokens_[static_cast<size_t>(at)]
                              : (*draft)[static_cast<size_t>(at - end)]);
  }
  return best;
}

}  // namespace litecache::engine
