// State of policy pqcache's caches that tests inspect, directly after Attend() of a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache.h"
#include "lab/namespaces.h"

namespace litecache::lab::pqcache {

class Diagnosis {
 public:
  virtual ~Diagnosis() = default;
  struct Selected {
    std::vector<int32_t> hits, misses;  // ascending positions
  };
  // For the layer attended last and the step's i-th decode sequence.
  virtual Selected SelectedRows(int64_t sequence, int64_t head) = 0;
  virtual bool indexed(SequenceId id) = 0;
  // For an indexed sequence: its row budget, centroids [subspaces][clusters][part_dim], and the
  // codes [tokens][subspaces] of its first tokens.
  virtual int64_t RowBudget(SequenceId id) = 0;
  virtual std::vector<float> Centroids(SequenceId id, int64_t layer, int64_t head) = 0;
  virtual std::vector<uint8_t> Codes(SequenceId id, int64_t layer, int64_t head,
                                     int64_t tokens) = 0;
  // The block's slot in the cache, or -1, including the effect of the step's uses.
  virtual int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) = 0;
};

}  // namespace litecache::lab::pqcache
