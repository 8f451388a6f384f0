#include "model/linear_matrices.h"

#include <memory>
#include <set>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "model/families.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

// Notes what the decoder of a family takes.
class NotedWeights final : public WeightStore {
 public:
  NotedWeights(const WeightTypes& types, std::vector<LinearMatrix>* noted)
      : types_(types), noted_(*noted) {}
  bool Has(const std::string& name) const override { return types_.Has(name); }
  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    return types_.Of(name, rows, cols);
  }
  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const StoredRows place = types_.RowsOf(name, rows);
    if (known_.insert(place.tensor).second) noted_.push_back({place.tensor, place.rows, cols});
    return Type(name, rows, cols);
  }
  const float* NormWeight(const std::string&, int64_t n, float) override { return NewVector(n); }
  const float* Bias(const std::string&, int64_t n) override { return NewVector(n); }

 private:
  const WeightTypes types_;
  std::vector<LinearMatrix>& noted_;  // only while the decoder is built
  std::set<std::string> known_;
};

}  // namespace

std::vector<LinearMatrix> LinearMatrices(const ModelConfig& config, const WeightTypes& types) {
  CpuDevice device(1);
  std::vector<LinearMatrix> noted;
  SpecOf(config.family).build(device, config, std::make_unique<NotedWeights>(types, &noted));
  return noted;
}

}  // namespace litecache::model
