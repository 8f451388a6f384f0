#include "model/weights.h"

#include "base/error.h"

namespace litecache::model {

float* WeightStore::NewVector(int64_t n) {
  vectors_.push_back(std::make_unique<float[]>(static_cast<size_t>(n)));
  Count(static_cast<uint64_t>(n) * sizeof(float));
  return vectors_.back().get();
}

const void** WeightStore::NewTable(int64_t n) {
  tables_.push_back(std::make_unique<const void*[]>(static_cast<size_t>(n)));
  return tables_.back().get();
}

ops::ExpertMatrices WeightStore::Experts(const LayerPlace& place,
                                         const std::function<std::string(int64_t)>& name,
                                         int64_t count, int64_t rows, int64_t cols) {
  const void** const table = NewTable(count);
  ops::ExpertMatrices experts{.type = {}, .count = count, .data = table};
  for (int64_t expert = 0; expert < count; ++expert) {
    MatrixView view = LayerMatrix(place, name(expert), rows, cols);
    table[expert] = view.data;
    view.data = nullptr;
    if (expert == 0) experts.type = view;
    CheckSameType(name(expert), view, experts.type);
  }
  return experts;
}

void CheckSameType(const std::string& name, const MatrixView& type, const MatrixView& first) {
  if (type.dtype == first.dtype && type.format == first.format) return;
  throw Unsupported("tensor '{}' is of another type than the layer's first expert's", name);
}

uint64_t ExpertStride(const MatrixView& type) {
  constexpr uint64_t kAlignment = 256;
  return (WeightBytesOf(type, /*gpu=*/true) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace litecache::model
