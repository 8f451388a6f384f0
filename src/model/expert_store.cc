#include "model/expert_store.h"

#include <cmath>

#include "ops/experts/expert_slots_cuda.h"

namespace litecache::model {

uint64_t ExpertStride(const MatrixView& type) {
  constexpr uint64_t kAlignment = 256;
  return (WeightBytesOf(type, /*gpu=*/true) + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t ExpertSlotsOf(double share, int64_t count) {
  return std::llround(share * static_cast<double>(count));
}

uint64_t ExpertSlotBytes(int64_t count, int64_t slots, uint64_t stride) {
  constexpr uint64_t kTables =
      2 * 3 * sizeof(void*);  // of each expert: of three matrices, here and in host memory
  return static_cast<uint64_t>(slots) * stride + static_cast<uint64_t>(count) * kTables +
         sizeof(ops::cuda::ExpertSlotState);
}

}  // namespace litecache::model
