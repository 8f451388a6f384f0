#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

std::optional<DType> ToDType(const std::string& name) {
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

// Element i of possibly unaligned data.
template <typename T>
float Load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return static_cast<float>(value);
}

void Widen(const std::byte* data, DType dtype, int64_t begin, int64_t end, float* out) {
  switch (dtype) {
    case DType::kBF16:
      for (int64_t i = begin; i < end; ++i) out[i] = Load<bf16>(data, i);
      break;
    case DType::kF16:
      for (int64_t i = begin; i < end; ++i) out[i] = Load<f16>(data, i);
      break;
    default:
      for (int64_t i = begin; i < end; ++i) out[i] = Load<float>(data, i);
      break;
  }
}

class CheckpointWeights final : public WeightStore {
 public:
  CheckpointWeights(Device& device, const std::filesystem::path& directory,
                    const LoadOptions& options)
      : device_(device),
        stream_(device.CreateStream()),
        checkpoint_(directory),
        widen_(options.compute_f32),
        progress_(options.progress) {}

  bool Has(const std::string& name) const override {
    return checkpoint_.Find(name).info != nullptr;
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const Found found = Find(name, {rows, cols});
    const DType target = widen_ ? DType::kF32 : found.dtype;
    const bool aligned = reinterpret_cast<uintptr_t>(found.data) % SizeOf(found.dtype) == 0;
    Count(static_cast<uint64_t>(rows * cols) * SizeOf(target));
    if (target == found.dtype && aligned) {
      // Views are mutable only by type; nothing writes through a weight's view.
      return MatrixView::Of(const_cast<std::byte*>(found.data), found.dtype, rows, cols);
    }
    return Copy(found, target, rows, cols);
  }

  const float* NormWeight(const std::string& name, int64_t n) override { return Vector(name, n); }
  const float* Bias(const std::string& name, int64_t n) override { return Vector(name, n); }

  void Finish(const std::function<void(int64_t done, int64_t total)>& progress) override {
    const auto total = static_cast<int64_t>(checkpoint_.file_bytes());
    // Widening has already read every matrix.
    if (!widen_) {
      checkpoint_.Prefault(progress);
    } else if (progress) {
      progress(total, total);
    }
  }

 private:
  struct Found {
    const std::byte* data = nullptr;
    DType dtype = DType::kF32;
    uint64_t bytes = 0;
  };

  Found Find(const std::string& name, const std::vector<int64_t>& shape) const {
    const io::Checkpoint::Tensor tensor = checkpoint_.Find(name);
    const auto expected = [&] { return io::TensorInfo{"", shape}.ToString(); };
    if (tensor.info == nullptr) {
      throw FileError("{}: tensor '{}' {} is missing, but config.json requires it",
                      checkpoint_.directory().string(), name, expected());
    }
    if (tensor.info->shape != shape) {
      throw FileError("{}: tensor '{}' is {}, but config.json requires{}", tensor.file->string(),
                      name, tensor.info->ToString(), expected());
    }
    const std::optional<DType> dtype = ToDType(tensor.info->dtype);
    if (!dtype) {
      throw Unsupported("{}: tensor '{}' is {}; BF16, F16 and F32 are supported",
                        tensor.file->string(), name, tensor.info->ToString());
    }
    return {tensor.data, *dtype, tensor.info->bytes()};
  }

  const float* Vector(const std::string& name, int64_t n) {
    const Found found = Find(name, {n});
    float* out = NewVector(n);
    Widen(found.data, found.dtype, 0, n, out);
    return out;
  }

  // The matrix widened, or copied unchanged if its data is misaligned in the file.
  MatrixView Copy(const Found& found, DType target, int64_t rows, int64_t cols) {
    const int64_t count = rows * cols;
    buffers_.push_back(device_.Allocate(static_cast<size_t>(count) * SizeOf(target)));
    void* out = buffers_.back().data();
    if (target == found.dtype) {
      std::memcpy(out, found.data, found.bytes);
    } else {
      constexpr int64_t kGrain = int64_t{1} << 18;
      AsCpu(*stream_).pool().ParallelFor(count, kGrain, [&](int64_t begin, int64_t end, int) {
        Widen(found.data, found.dtype, begin, end, static_cast<float*>(out));
      });
    }
    done_ += found.bytes;
    if (widen_ && progress_) {
      progress_(static_cast<int64_t>(done_), static_cast<int64_t>(checkpoint_.file_bytes()));
    }
    return MatrixView::Of(out, target, rows, cols);
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  io::Checkpoint checkpoint_;
  const bool widen_;
  const std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  uint64_t done_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> OpenCheckpointWeights(Device& device,
                                                   const std::filesystem::path& directory,
                                                   const LoadOptions& options) {
  return std::make_unique<CheckpointWeights>(device, directory, options);
}

}  // namespace litecache::model
