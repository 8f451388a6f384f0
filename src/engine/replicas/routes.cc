#include "engine/replicas/routes.h"

#include "base/error.h"

namespace litecache::engine {

int Routes::Choose(std::span<const int32_t> prompt, std::span<const int64_t> requests) {
  LC_CHECK(std::ssize(requests) == replicas_);
  std::vector<BlockKey> chain;
  if (most_ > 0) chain = ChainKeys(RootKey(""), prompt, kRouteTokens);
  std::vector<int64_t> known(static_cast<size_t>(replicas_));  // blocks
  uint64_t left = ~uint64_t{0};
  for (const BlockKey& key : chain) {
    const auto found = by_key_.find(key);
    left &= found == by_key_.end() ? 0 : found->second->replicas;
    if (left == 0) break;
    for (int i = 0; i < replicas_; ++i) known[static_cast<size_t>(i)] += (left >> i) & 1;
  }

  const int first = chain.empty()
                        ? next_++ % replicas_
                        : static_cast<int>(chain[0].low % static_cast<uint64_t>(replicas_));
  const auto cost = [&](int replica) {
    const auto at = static_cast<size_t>(replica);
    return kTokensOfRequest * requests[at] - kRouteTokens * known[at];
  };
  int best = first;
  for (int i = 1; i < replicas_; ++i) {
    const int replica = (first + i) % replicas_;
    if (cost(replica) < cost(best)) best = replica;
  }

  // The beginning is used by most prompts and must be forgotten last.
  for (auto key = chain.rbegin(); key != chain.rend(); ++key) {
    const auto [found, is_new] = by_key_.try_emplace(*key);
    if (is_new) {
      blocks_.push_front({*key, 0});
    } else {
      blocks_.splice(blocks_.begin(), blocks_, found->second);
    }
    found->second = blocks_.begin();
    blocks_.front().replicas |= uint64_t{1} << best;
  }
  while (std::ssize(blocks_) > most_) {
    by_key_.erase(blocks_.back().key);
    blocks_.pop_back();
  }
  return best;
}

}  // namespace litecache::engine
