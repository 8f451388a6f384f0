// What tests look at in policy pqcache's caches, right after Attend() of a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache.h"

namespace litecache::kv::pqcache {

class Diagnosis {
 public:
  virtual ~Diagnosis() = default;
  struct Selected {
    std::vector<int32_t> hits, misses;  // ascending positions
  };
  // Of the layer that was attended last, the step's i-th decode sequence's.
  virtual Selected SelectedRows(int64_t sequence, int64_t head) = 0;
  virtual bool indexed(SequenceId id) = 0;
  // Of an indexed sequence: its budget of rows, centroids [subspaces][clusters][part_dim], and the
  // codes [tokens][subspaces] of its first tokens.
  virtual int64_t RowBudget(SequenceId id) = 0;
  virtual std::vector<float> Centroids(SequenceId id, int64_t layer, int64_t head) = 0;
  virtual std::vector<uint8_t> Codes(SequenceId id, int64_t layer, int64_t head,
                                     int64_t tokens) = 0;
  // The cache's slot of a block, -1 where it has none, the step's uses counted.
  virtual int64_t SlotOf(SequenceId id, int64_t layer, int64_t block) = 0;
};

}  // namespace litecache::kv::pqcache
