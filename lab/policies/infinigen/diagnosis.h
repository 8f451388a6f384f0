// State of policy infinigen's caches that tests inspect.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache.h"
#include "lab/namespaces.h"

namespace litecache::lab::infinigen {

class Diagnosis {
 public:
  virtual ~Diagnosis() = default;
  // For the step in progress: the rows that its i-th decode sequence fetched for the layer attended
  // last, ascending.
  virtual std::vector<int32_t> Fetched(int64_t layer, int64_t sequence, int64_t head) const = 0;
  // A sequence's channels of a (layer, KV head); empty before they are chosen.
  virtual std::vector<int32_t> ChosenChannels(SequenceId id, int64_t layer, int64_t head) const = 0;
};

}  // namespace litecache::lab::infinigen
