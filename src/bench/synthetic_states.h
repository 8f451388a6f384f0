// Fills the states of recurrent layers without computing a prompt.
#pragma once

#include <cstdint>

#include "bench/synthetic_rows.h"
#include "device/device.h"
#include "kv/cache.h"

namespace litecache::bench {

class SyntheticStates {
 public:
  // Steps have at most `rows` rows.
  SyntheticStates(Device& device, const ops::GatedDeltaShape& shape, int64_t rows, uint64_t seed);

  // Updates a layer's states with random inputs and weights.
  void Update(Stream& stream, int64_t layer, const kv::Step& step, kv::Cache& cache);

 private:
  ops::GatedDeltaShape shape_;
  SyntheticRows values_, convolved_, out_;
  ops::GatedDeltaWeights weights_;
};

}  // namespace litecache::bench
