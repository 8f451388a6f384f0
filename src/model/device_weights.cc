// Weights in a GPU's memory: another store's tensors, uploaded as the decoder takes them.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

// Bytes converted at a time, so that no tensor is on the host twice.
constexpr int64_t kConvertValues = int64_t{1} << 22;

class DeviceWeights final : public WeightStore {
 public:
  DeviceWeights(Device& device, std::unique_ptr<WeightStore> source, int64_t total,
                std::function<void(int64_t done, int64_t total)> progress)
      : device_(device),
        source_(std::move(source)),
        total_(total),
        progress_(std::move(progress)) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const MatrixView host = source_->Matrix(name, rows, cols);
    LC_CHECK(host.stride == host.cols);
    const DType dtype = host.dtype == DType::kF16 ? DType::kF32 : host.dtype;
    const int64_t count = rows * cols;
    void* target = Take(static_cast<size_t>(count) * SizeOf(dtype));
    if (host.dtype == DType::kF16) {
      // Products of f16 weights are f32 products (ops/linear.h).
      widened_.resize(static_cast<size_t>(std::min(count, kConvertValues)));
      for (int64_t begin = 0; begin < count; begin += kConvertValues) {
        const int64_t end = std::min(begin + kConvertValues, count);
        const auto* from = static_cast<const f16*>(host.data);
        for (int64_t i = begin; i < end; ++i) {
          widened_[static_cast<size_t>(i - begin)] = static_cast<float>(from[i]);
        }
        device_.Upload(static_cast<float*>(target) + begin, widened_.data(),
                       static_cast<size_t>(end - begin) * sizeof(float));
      }
    } else {
      device_.Upload(target, host.data, static_cast<size_t>(count) * SizeOf(dtype));
    }
    Report();
    return MatrixView::Of(target, dtype, rows, cols);
  }

  const float* NormWeight(const std::string& name, int64_t n) override {
    return Copy(source_->NormWeight(name, n), n);
  }
  const float* Bias(const std::string& name, int64_t n) override {
    return Copy(source_->Bias(name, n), n);
  }
  // Everything is uploaded: the host's copies may go.
  void Finish(const std::function<void(int64_t, int64_t)>&) override {
    source_.reset();
    widened_ = {};
  }

 private:
  void* Take(size_t bytes) {
    buffers_.push_back(device_.Allocate(bytes));
    Count(bytes);
    return buffers_.back().data();
  }
  const float* Copy(const float* host, int64_t n) {
    auto* target = static_cast<float*>(Take(static_cast<size_t>(n) * sizeof(float)));
    device_.Upload(target, host, static_cast<size_t>(n) * sizeof(float));
    return target;
  }
  void Report() {
    if (progress_) progress_(std::min(static_cast<int64_t>(bytes()), total_), total_);
  }

  Device& device_;
  std::unique_ptr<WeightStore> source_;
  int64_t total_;
  std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  std::vector<float> widened_;
};

}  // namespace

std::unique_ptr<WeightStore> UploadWeights(
    Device& device, std::unique_ptr<WeightStore> source, int64_t total,
    std::function<void(int64_t done, int64_t total)> progress) {
  return std::make_unique<DeviceWeights>(device, std::move(source), total, std::move(progress));
}

}  // namespace litecache::model
