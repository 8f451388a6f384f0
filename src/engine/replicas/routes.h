// Which replica a request runs on.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/prefix/block_key.h"

namespace litecache::engine {

// Remembers which beginnings of prompts the replicas have seen, in blocks of kRouteTokens tokens,
// and which of them were used last.
class Routes {
 public:
  // A running request slows a new one about as much as this many tokens of its prompt do: a GPU's
  // step of a few milliseconds, which the requests share, computes some hundred of them.
  static constexpr int64_t kTokensOfRequest = 512;
  static constexpr int64_t kRouteTokens = 64;
  static constexpr int kMostReplicas = 64;

  // tokens: as many as all replicas keep; 0: they keep none, and only their load counts.
  Routes(int replicas, int64_t tokens) : replicas_(replicas), most_(tokens / kRouteTokens) {}

  // The replica with the least to do until the prompt is computed: tokens that it has not kept,
  // and its requests, running and waiting, requests [replicas]. Of equal ones, the prompt's first
  // block names one, the same after a restart, when its KV may be in a store on disk; prompts that
  // are shorter take turns. Counts as the prompt's use on that replica.
  int Choose(std::span<const int32_t> prompt, std::span<const int64_t> requests);

 private:
  struct Block {
    BlockKey key;
    uint64_t replicas = 0;  // a bit each
  };

  const int replicas_;
  const int64_t most_;
  int next_ = 0;             // whose turn it is
  std::list<Block> blocks_;  // last used first
  std::unordered_map<BlockKey, std::list<Block>::iterator, BlockKeyHash> by_key_;
};

}  // namespace litecache::engine
