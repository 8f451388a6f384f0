#include "model/weights.h"

namespace litecache::model {

float* WeightStore::NewVector(int64_t n) {
  vectors_.push_back(std::make_unique<float[]>(static_cast<size_t>(n)));
  Count(static_cast<uint64_t>(n) * sizeof(float));
  return vectors_.back().get();
}

}  // namespace litecache::model
