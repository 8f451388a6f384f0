#include "model/shape_decoder.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "model/families.h"
#include "model/weight_placement.h"

namespace litecache::model {
namespace {

class ShapeWeights final : public WeightStore {
 public:
  explicit ShapeWeights(DType dtype) : dtype_(dtype) {}
  bool Has(const std::string&) const override { return true; }
  MatrixView Matrix(const std::string&, int64_t rows, int64_t cols) override {
    return MatrixView::Of(static_cast<void*>(nullptr), dtype_, rows, cols);
  }
  const float* NormWeight(const std::string&, int64_t n) override { return NewVector(n); }
  const float* Bias(const std::string&, int64_t n) override { return NewVector(n); }

 private:
  DType dtype_;
};

class ShapeDecoder final : public Decoder {
 public:
  ShapeDecoder(std::unique_ptr<Decoder> shape, const WeightBytes& weights, int64_t offloaded)
      : shape_(std::move(shape)), weights_(weights), offloaded_(offloaded) {}
  const ModelConfig& config() const override { return shape_->config(); }
  DType kv_dtype() const override { return shape_->kv_dtype(); }
  uint64_t weight_bytes() const override { return weights_.device; }
  uint64_t host_weight_bytes() const override { return weights_.host; }
  int64_t offloaded_layers() const override { return offloaded_; }
  uint64_t weight_bytes_per_step() const override { return weights_.device; }
  uint64_t WorkspaceBytes(int64_t rows, int64_t logit_rows) const override {
    return shape_->WorkspaceBytes(rows, logit_rows);
  }
  void Forward(Stream&, const kv::Step&, std::span<const int32_t>, std::span<const int32_t>,
               kv::Cache&, std::span<const int64_t>, const MatrixView&) override {
    LC_CHECK(false, "a shape has no weights");
  }

 private:
  std::unique_ptr<Decoder> shape_;
  WeightBytes weights_;
  int64_t offloaded_;
};

}  // namespace

std::unique_ptr<Decoder> MakeShapeDecoder(Device& device, const ModelConfig& config,
                                          const LoadOptions& options) {
  const DType dtype = options.compute_f32 ? DType::kF32 : config.weight_dtype;
  const double share = options.weights_on_device;
  return std::make_unique<ShapeDecoder>(
      SpecOf(config.family).build(device, config, std::make_unique<ShapeWeights>(dtype)),
      EstimateWeights(config, dtype, share), WeightPlacement::Of(config.layers, share).offloaded);
}

}  // namespace litecache::model
