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

ops::ExpertLayer WeightStore::Experts(const ExpertRequest& request) {
  ops::ExpertLayer layer;
  for (int part = 0; part < ops::kExpertParts; ++part) {
    const void** const table = NewTable(request.count);
    ops::ExpertMatrices& experts = ops::PartOf(layer, part);
    experts = {.type = {}, .count = request.count, .data = table};
    for (int64_t expert = 0; expert < request.count; ++expert) {
      const std::string name = request.name(part, expert);
      MatrixView view = LayerMatrix(request.place, name, request.Rows(part), request.Cols(part));
      table[expert] = view.data;
      view.data = nullptr;
      if (expert == 0) experts.type = view;
      CheckSameType(name, view, experts.type);
    }
  }
  return layer;
}

void CheckSameType(const std::string& name, const MatrixView& type, const MatrixView& first) {
  if (type.dtype == first.dtype && type.format == first.format) return;
  throw Unsupported("tensor '{}' is of another type than the layer's first expert's", name);
}

}  // namespace litecache::model
