// Weights in GPU memory: another store's tensors, uploaded when the decoder requests them. Matrices
// of offloaded layers go to pinned host memory instead.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

// Values converted at a time, so that no tensor is on the host twice.
constexpr int64_t kConvertValues = int64_t{1} << 22;

class DeviceWeights final : public WeightStore {
 public:
  DeviceWeights(Device& device, std::unique_ptr<WeightStore> source,
                std::unique_ptr<WeightStream> stream, int64_t total,
                std::function<void(int64_t done, int64_t total)> progress)
      : device_(device),
        source_(std::move(source)),
        stream_(std::move(stream)),
        total_(total),
        progress_(std::move(progress)) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const MatrixView host = source_->Matrix(name, rows, cols);
    const DType dtype = DeviceDType(host);
    void* target = Take(static_cast<size_t>(rows * cols) * SizeOf(dtype));
    Convert(host, [&](size_t offset, const void* data, size_t bytes) {
      device_.Upload(static_cast<std::byte*>(target) + offset, data, bytes);
    });
    return MatrixView::Of(target, dtype, rows, cols);
  }

  MatrixView LayerMatrix(const LayerPlace& place, const std::string& name, int64_t rows,
                         int64_t cols) override {
    if (stream_ == nullptr || !stream_->Offloads(place.layer)) return Matrix(name, rows, cols);
    const MatrixView host = source_->Matrix(name, rows, cols);
    const WeightStream::Matrix target = stream_->Add(place, DeviceDType(host), rows, cols);
    Count(static_cast<uint64_t>(rows * cols) * SizeOf(target.view.dtype));
    Convert(host, [&](size_t offset, const void* data, size_t bytes) {
      std::memcpy(static_cast<std::byte*>(target.host) + offset, data, bytes);
    });
    return target.view;
  }

  WeightStream* stream() const override { return stream_.get(); }

  const float* NormWeight(const std::string& name, int64_t n) override {
    return Copy(source_->NormWeight(name, n), n);
  }
  const float* Bias(const std::string& name, int64_t n) override {
    return Copy(source_->Bias(name, n), n);
  }
  // Everything is uploaded: the host's copies can be freed.
  void Finish(const std::function<void(int64_t, int64_t)>&) override {
    source_.reset();
    widened_ = {};
  }

 private:
  // Products of f16 weights are f32 products (ops/linear/linear.h).
  static DType DeviceDType(const MatrixView& host) {
    return host.dtype == DType::kF16 ? DType::kF32 : host.dtype;
  }
  // Converts the matrix to its dtype on the device: calls put(offset in bytes, values, bytes) in
  // ascending order.
  template <class Put>
  void Convert(const MatrixView& host, const Put& put) {
    LC_CHECK(host.stride == host.cols);
    const int64_t count = host.rows * host.cols;
    if (host.dtype != DType::kF16) {
      put(0, host.data, static_cast<size_t>(count) * SizeOf(host.dtype));
    } else {
      widened_.resize(static_cast<size_t>(std::min(count, kConvertValues)));
      for (int64_t begin = 0; begin < count; begin += kConvertValues) {
        const auto size = static_cast<size_t>(std::min(kConvertValues, count - begin));
        const auto* from = static_cast<const f16*>(host.data) + begin;
        for (size_t i = 0; i < size; ++i) widened_[i] = static_cast<float>(from[i]);
        put(static_cast<size_t>(begin) * sizeof(float), widened_.data(), size * sizeof(float));
      }
    }
    Report();
  }
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
  std::unique_ptr<WeightStream> stream_;
  int64_t total_;
  std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  std::vector<float> widened_;
};

}  // namespace

std::unique_ptr<WeightStore> UploadWeights(
    Device& device, std::unique_ptr<WeightStore> source, std::unique_ptr<WeightStream> stream,
    int64_t total, std::function<void(int64_t done, int64_t total)> progress) {
  return std::make_unique<DeviceWeights>(device, std::move(source), std::move(stream), total,
                                         std::move(progress));
}

}  // namespace litecache::model
