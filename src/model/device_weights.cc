// Weights in GPU memory: another store's tensors, uploaded when the decoder requests them. Matrices
// of offloaded layers go to pinned host memory instead.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/weights.h"
#include "ops/linear/quantized/packed_blocks.h"

namespace litecache::model {
namespace {

// Values converted at a time, so that no tensor is on the host twice.
constexpr int64_t kConvertValues = int64_t{1} << 22;
// Bytes packed at a time: a piece for each of a few dozen threads.
constexpr int64_t kPackBytes = int64_t{64} << 20;

class DeviceWeights final : public WeightStore {
 public:
  DeviceWeights(Device& device, ThreadPool& pool, std::unique_ptr<WeightStore> source,
                std::unique_ptr<WeightStream> stream, std::unique_ptr<ExpertStore> experts,
                int64_t total, std::function<void(int64_t done, int64_t total)> progress)
      : device_(device),
        pool_(pool),
        source_(std::move(source)),
        stream_(std::move(stream)),
        experts_(std::move(experts)),
        total_(total),
        progress_(std::move(progress)) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }

  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    return OnDevice(source_->Type(name, rows, cols));
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const MatrixView host = source_->Matrix(name, rows, cols);
    MatrixView view = OnDevice(host);
    view.data = Take(WeightBytesOf(view, /*gpu=*/true));
    Convert(host, [&](size_t offset, const void* data, size_t bytes) {
      device_.Upload(static_cast<std::byte*>(view.data) + offset, data, bytes);
    });
    return view;
  }

  MatrixView LayerMatrix(const LayerPlace& place, const std::string& name, int64_t rows,
                         int64_t cols) override {
    if (stream_ == nullptr || !stream_->Offloads(place.layer)) return Matrix(name, rows, cols);
    const MatrixView host = source_->Matrix(name, rows, cols);
    const MatrixView type = OnDevice(host);
    const uint64_t bytes = WeightBytesOf(type, /*gpu=*/true);
    const WeightStream::Matrix target = stream_->Add(place, type, bytes);
    Count(bytes);
    Convert(host, [&](size_t offset, const void* data, size_t size) {
      std::memcpy(static_cast<std::byte*>(target.host) + offset, data, size);
    });
    return target.view;
  }

  ops::ExpertLayer Experts(const ExpertRequest& request) override {
    if (experts_ != nullptr) return HostExperts(request);
    ops::ExpertLayer layer;
    for (int part = 0; part < ops::kExpertParts; ++part) {
      ops::PartOf(layer, part) = DeviceExperts(request, part);
    }
    return layer;
  }

  WeightStream* stream() const override { return stream_.get(); }
  ExpertStore* experts() const override { return experts_.get(); }

  const float* NormWeight(const std::string& name, int64_t n, float added) override {
    return Copy(source_->NormWeight(name, n, added), n);
  }
  const float* Bias(const std::string& name, int64_t n) override {
    return Copy(source_->Bias(name, n), n);
  }
  // Everything is uploaded: the host's copies can be freed.
  void Finish(const std::function<void(int64_t, int64_t)>&) override {
    source_.reset();
    widened_ = {};
    packed_ = {};
  }

 private:
  // Calls put(expert, offset in bytes, values, bytes) for a part of all experts.
  template <class Put>
  void ConvertExperts(const ExpertRequest& request, int part, const MatrixView& type,
                      const Put& put) {
    for (int64_t expert = 0; expert < request.count; ++expert) {
      const std::string name = request.name(part, expert);
      const MatrixView matrix = source_->Matrix(name, request.Rows(part), request.Cols(part));
      CheckSameType(name, OnDevice(matrix), type);
      Convert(matrix, [&](size_t offset, const void* data, size_t bytes) {
        put(static_cast<size_t>(expert), offset, data, bytes);
      });
    }
  }
  MatrixView TypeOf(const ExpertRequest& request, int part) const {
    return Type(request.name(part, 0), request.Rows(part), request.Cols(part));
  }
  // A part of all experts, in one piece of the device's memory, or of an offloaded layer's place.
  ops::ExpertMatrices DeviceExperts(const ExpertRequest& request, int part) {
    const MatrixView type = TypeOf(request, part);
    const auto count = static_cast<size_t>(request.count);
    const size_t stride = ExpertStride(type);
    std::byte *device = nullptr, *host = nullptr;
    if (stream_ == nullptr || !stream_->Offloads(request.place.layer)) {
      device = static_cast<std::byte*>(Take(count * stride));
    } else {
      const WeightStream::Matrix target = stream_->Add(request.place, type, count * stride);
      Count(count * stride);
      device = static_cast<std::byte*>(target.view.data);
      host = static_cast<std::byte*>(target.host);
    }
    ConvertExperts(request, part, type,
                   [&](size_t expert, size_t offset, const void* data, size_t bytes) {
                     const size_t at = expert * stride + offset;
                     if (host != nullptr) {
                       std::memcpy(host + at, data, bytes);
                     } else {
                       device_.Upload(device + at, data, bytes);
                     }
                   });
    std::vector<const void*> table;
    for (size_t expert = 0; expert < count; ++expert) table.push_back(device + expert * stride);
    void* const copy = Take(count * sizeof(void*));
    device_.Upload(copy, table.data(), count * sizeof(void*));
    return {type, request.count, static_cast<const void* const*>(copy)};
  }
  ops::ExpertLayer HostExperts(const ExpertRequest& request) {
    const std::array<MatrixView, ops::kExpertParts> types = {TypeOf(request, 0), TypeOf(request, 1),
                                                             TypeOf(request, 2)};
    const uint64_t before = experts_->host_bytes();
    const ExpertStore::Layer layer = experts_->Add(request.count, types);
    Count(experts_->host_bytes() - before);
    for (int part = 0; part < ops::kExpertParts; ++part) {
      const auto index = static_cast<size_t>(part);
      const size_t stride = ExpertStride(types[index]);
      ConvertExperts(request, part, types[index],
                     [&](size_t expert, size_t offset, const void* data, size_t bytes) {
                       std::memcpy(layer.host[index] + expert * stride + offset, data, bytes);
                     });
    }
    experts_->FillSlots();
    return layer.experts;
  }

  // The type of a matrix on the device, without data. Products of f16 weights are f32 products
  // (ops/linear/linear.h).
  static MatrixView OnDevice(MatrixView view) {
    view.data = nullptr;
    if (view.dtype == DType::kF16) view.dtype = DType::kF32;
    if (view.dtype == DType::kBlocks) {
      view.row_bytes = static_cast<int64_t>(
          ops::PackedBytes(*view.format, ops::kPackedRows, view.cols) / ops::kPackedRows);
    }
    return view;
  }
  // Converts the matrix to its type on the device: calls put(offset in bytes, values, bytes) in
  // ascending order.
  template <class Put>
  void Convert(const MatrixView& host, const Put& put) {
    LC_CHECK(host.stride == host.cols);
    const int64_t count = host.rows * host.cols;
    if (host.dtype == DType::kBlocks) {
      Pack(host, put);
    } else if (host.dtype != DType::kF16) {
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
  template <class Put>
  void Pack(const MatrixView& host, const Put& put) {
    const uint64_t tile_bytes = ops::PackedBytes(*host.format, ops::kPackedRows, host.cols);
    const auto step = std::max<int64_t>(1, kPackBytes / static_cast<int64_t>(tile_bytes));
    const int64_t tiles = (host.rows + ops::kPackedRows - 1) / ops::kPackedRows;
    packed_.resize(static_cast<size_t>(std::min(step, tiles)) * tile_bytes);
    for (int64_t first = 0; first < tiles; first += step) {
      const int64_t count = std::min(step, tiles - first);
      pool_.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int) {
        const int64_t row = (first + begin) * ops::kPackedRows;
        const int64_t rows = std::min((end - begin) * ops::kPackedRows, host.rows - row);
        ops::PackBlocks(host.Rows(row, rows),
                        packed_.data() + static_cast<uint64_t>(begin) * tile_bytes);
      });
      put(static_cast<uint64_t>(first) * tile_bytes, packed_.data(),
          static_cast<uint64_t>(count) * tile_bytes);
    }
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
  ThreadPool& pool_;  // used only while weights are loaded
  std::unique_ptr<WeightStore> source_;
  std::unique_ptr<WeightStream> stream_;
  std::unique_ptr<ExpertStore> experts_;
  int64_t total_;
  std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  std::vector<float> widened_;
  std::vector<std::byte> packed_;
};

}  // namespace

std::unique_ptr<WeightStore> UploadWeights(
    Device& device, ThreadPool& pool, std::unique_ptr<WeightStore> source,
    std::unique_ptr<WeightStream> stream, std::unique_ptr<ExpertStore> experts, int64_t total,
    std::function<void(int64_t done, int64_t total)> progress) {
  return std::make_unique<DeviceWeights>(device, pool, std::move(source), std::move(stream),
                                         std::move(experts), total, std::move(progress));
}

}  // namespace litecache::model
