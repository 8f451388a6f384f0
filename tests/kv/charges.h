// Checks that a cache takes no more memory than its sequences may use.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "kv/cache.h"

namespace litecache::kv {

class Charges {
 public:
  void Create(SequenceId id) { charges_[id] = {}; }
  // length: the parent's current length. It may have been longer; slots stay, and a fork has as
  // many.
  void Fork(SequenceId parent, SequenceId id, int64_t length) {
    charges_[id] = {.fork = true,
                    .parent = parent,
                    .shared = length,
                    .tokens = std::max(length, charges_[parent].tokens)};
    charges_[parent].forked = true;
  }
  // A sequence goes back to `length` tokens: what it stores behind them is no longer shared with
  // its forks, nor with what it was forked from.
  void TakeBack(SequenceId id, int64_t length) {
    for (auto& [other, charge] : charges_) {
      if (other == id || (charge.fork && charge.parent == id)) {
        charge.shared = std::min(charge.shared, length);
      }
    }
  }
  // A forked sequence still counts: its pages may be in use by its forks.
  void Release(SequenceId id) {
    if (!charges_[id].forked) charges_.erase(id);
  }

  // Adds a step's rows and checks that the cache has not taken more than all sequences may.
  void Check(const Cache& cache, const Step& step) {
    for (const StepSequence& sequence : step.sequences) {
      Charge& charge = charges_[sequence.id];
      charge.tokens = std::max(charge.tokens, sequence.past + sequence.rows);
    }
    TierBytes limit;
    for (const auto& [id, charge] : charges_) {
      limit += charge.fork ? cache.ForkBytesFor(charge.shared, charge.tokens)
                           : cache.BytesFor(charge.tokens);
    }
    const TierBytes used = cache.GetStats().used;
    EXPECT_LE(used.device, limit.device);
    EXPECT_LE(used.host, limit.host);
  }

 private:
  struct Charge {
    bool fork = false;
    SequenceId parent = 0;
    int64_t shared = 0, tokens = 0;
    bool forked = false;
  };
  std::map<SequenceId, Charge> charges_;
};

}  // namespace litecache::kv
