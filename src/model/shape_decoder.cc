#include "model/shape_decoder.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "model/families.h"
#include "model/shard.h"
#include "model/weight_placement.h"
#include "ops/experts/expert_slots_cuda.h"

namespace litecache::model {
namespace {

struct Counted {
  WeightBytes bytes;
  PlaceBytes places;
};

// Counts what the decoder of a family takes.
class ShapeWeights final : public WeightStore {
 public:
  ShapeWeights(const ModelConfig& config, const WeightTypes& types,
               const WeightPlacement& placement, double experts, bool gpu, Counted* counted)
      : config_(config),
        types_(types),
        placement_(placement),
        experts_(experts),
        gpu_(gpu),
        counted_(*counted) {}
  bool Has(const std::string& name) const override { return types_.Has(name); }
  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    return TypeOf(name, rows, cols);
  }
  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const MatrixView type = TypeOf(name, rows, cols);
    counted_.bytes.device += WeightBytesOf(type, gpu_);
    return type;
  }
  MatrixView LayerMatrix(const LayerPlace& place, const std::string& name, int64_t rows,
                         int64_t cols) override {
    const MatrixView type = TypeOf(name, rows, cols);
    CountAt(place, WeightBytesOf(type, gpu_));
    return type;
  }
  bool experts_on_host() const override { return gpu_ && experts_ < 1; }
  ops::ExpertLayer Experts(const ExpertRequest& request) override {
    ops::ExpertLayer layer;
    const auto count = static_cast<uint64_t>(request.count);
    uint64_t stride = 0;  // of all parts
    for (int part = 0; part < ops::kExpertParts; ++part) {
      const MatrixView type = TypeOf(request.name(part, 0), request.Rows(part), request.Cols(part));
      ops::PartOf(layer, part) = {type, request.count, nullptr};
      const uint64_t own = gpu_ ? ExpertStride(type) : WeightBytesOf(type, false);
      stride += own;
      if (experts_on_host()) continue;
      CountAt(request.place, count * own);
      if (gpu_) counted_.bytes.device += count * sizeof(void*);
    }
    if (experts_on_host()) {
      counted_.bytes.host += count * stride;
      counted_.bytes.device +=
          ExpertSlotBytes(request.count, ExpertSlotsOf(experts_, request.count), stride);
      layer.slots = &slots_;
    }
    return layer;
  }
  const float* NormWeight(const std::string&, int64_t n, float) override { return Vector(n); }
  const float* Bias(const std::string&, int64_t n) override { return Vector(n); }

 private:
  MatrixView TypeOf(const std::string& name, int64_t rows, int64_t cols) const {
    const TensorPart part = PartOf(config_, name, rows, cols);
    MatrixView type =
        TypeOfPart(config_, types_.Of(name, part.whole_rows, part.whole_cols), name, part);
    if (gpu_ && type.dtype == DType::kF16) type.dtype = DType::kF32;  // as they are uploaded
    return type;
  }
  void CountAt(const LayerPlace& place, uint64_t bytes) {
    if (!placement_.Offloads(place.layer)) {
      counted_.bytes.device += bytes;
      return;
    }
    counted_.bytes.host += bytes;
    if (place.layer != layer_) {
      layer_ = place.layer;
      ++ordinal_;
      matrices_ = {};
    }
    std::vector<uint64_t>& most = counted_.places.Of(place.part, ordinal_);
    const size_t index = matrices_[static_cast<size_t>(place.part)]++;
    if (index == most.size()) most.push_back(0);
    if (bytes > most[index]) {
      counted_.bytes.device += bytes - std::exchange(most[index], bytes);
    }
  }
  const float* Vector(int64_t n) {
    counted_.bytes.device += static_cast<uint64_t>(n) * sizeof(float);
    return NewVector(n);
  }

  const ModelConfig config_;
  const WeightTypes types_;
  const WeightPlacement placement_;
  const double experts_;  // the share of the experts that have a slot on the device
  const bool gpu_;
  const ops::ExpertSlots slots_;  // never used: they tell how products of many rows are made
  Counted& counted_;              // only while the decoder is built
  // Of the offloaded layer that is being taken: its index, its rank among the offloaded ones, and
  // the number of its matrices so far, by part.
  int64_t layer_ = -1, ordinal_ = -1;
  std::array<size_t, kLayerParts> matrices_ = {};
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
  uint64_t weight_bytes_per_step(int64_t) const override { return weights_.device; }
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

Counted Count(const ModelConfig& config, const WeightTypes& types, const WeightShares& shares,
              bool gpu) {
  CpuDevice device(1);
  Counted counted;
  SpecOf(config.family)
      .build(
          device, config,
          std::make_unique<ShapeWeights>(config, types, WeightPlacement::Of(config, shares.layers),
                                         shares.experts, gpu, &counted));
  return counted;
}

}  // namespace

WeightBytes EstimateWeights(const ModelConfig& config, const WeightTypes& types,
                            const WeightShares& shares, bool gpu) {
  return Count(config, types, shares, gpu).bytes;
}

PlaceBytes EstimatePlaces(const ModelConfig& config, const WeightTypes& types,
                          const WeightShares& shares) {
  return Count(config, types, shares, /*gpu=*/true).places;
}

std::unique_ptr<Decoder> MakeShapeDecoder(Device& device, const ModelConfig& shape,
                                          const LoadOptions& options, bool gpu) {
  if (gpu) CheckRunsOnGpu(shape);
  ModelConfig config = shape;
  CheckExperts(config, options.experts_on_device);
  const WeightTypes types(config, options.dtype, options.quantization, nullptr);
  config.quantized = types.quantizes();
  const auto placement = WeightPlacement::Of(config, options.weights_on_device);
  Counted counted;
  auto decoder =
      SpecOf(config.family)
          .build(device, config,
                 std::make_unique<ShapeWeights>(config, types, placement, options.experts_on_device,
                                                gpu, &counted));
  return std::make_unique<ShapeDecoder>(std::move(decoder), counted.bytes, placement.offloaded);
}

}  // namespace litecache::model
