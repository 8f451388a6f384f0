#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "base/join.h"
#include "device/cpu/cpu_device.h"
#include "io/checkpoint.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

std::optional<DType> ToDType(std::string_view name) {
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

void Round(std::span<const float> values, DType dtype, void* out) {
  switch (dtype) {
    case DType::kBF16:
      for (size_t i = 0; i < values.size(); ++i) static_cast<bf16*>(out)[i] = bf16(values[i]);
      break;
    case DType::kF16:
      for (size_t i = 0; i < values.size(); ++i) static_cast<f16*>(out)[i] = f16(values[i]);
      break;
    default:
      std::ranges::copy(values, static_cast<float*>(out));
      break;
  }
}

class CheckpointWeights final : public WeightStore {
 public:
  CheckpointWeights(Device& device, const std::filesystem::path& model,
                    std::optional<DType> converted, bool passing,
                    std::function<void(int64_t done, int64_t total)> progress)
      : device_(device),
        stream_(device.CreateStream()),
        checkpoint_(model),
        converted_(converted),
        passing_(passing),
        progress_(std::move(progress)) {}

  bool Has(const std::string& name) const override {
    return checkpoint_.Find(name).info != nullptr;
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    const Found found = Find(name, {rows, cols});
    const std::optional<DType> dtype = ToDType(found.format->name);
    LC_CHECK(converted_ || dtype);
    const DType target = converted_ ? *converted_ : *dtype;
    Count(static_cast<uint64_t>(rows * cols) * SizeOf(target));
    const bool aligned = reinterpret_cast<uintptr_t>(found.data) % SizeOf(target) == 0;
    if (target == dtype && aligned && found.paired_heads == 0) {
      mapped_ = true;
      // Views are mutable only by type; nothing writes through a weight's view.
      return MatrixView::Of(const_cast<std::byte*>(found.data), target, rows, cols);
    }
    if (passing_) buffers_.clear();
    buffers_.push_back(device_.Allocate(static_cast<size_t>(rows * cols) * SizeOf(target)));
    const MatrixView view = MatrixView::Of(buffers_.back().data(), target, rows, cols);
    Convert(found, view);
    Report(found.bytes);
    return view;
  }

  const float* NormWeight(const std::string& name, int64_t n) override { return Vector(name, n); }
  const float* Bias(const std::string& name, int64_t n) override { return Vector(name, n); }

  void Finish(const std::function<void(int64_t done, int64_t total)>& progress) override {
    const auto total = static_cast<int64_t>(checkpoint_.file_bytes());
    // Conversion has already read what is not mapped.
    if (mapped_) {
      checkpoint_.Prefault(progress);
    } else if (progress) {
      progress(total, total);
    }
  }

 private:
  struct Found {
    const std::byte* data = nullptr;
    const BlockFormat* format = nullptr;
    uint64_t bytes = 0;
    int64_t paired_heads = 0;
  };

  Found Find(const std::string& name, const std::vector<int64_t>& shape) const {
    const io::Checkpoint::Tensor tensor = checkpoint_.Find(name);
    const auto expected = [&] { return io::TensorInfo{"", shape}.ToString(); };
    if (tensor.info == nullptr) {
      throw FileError("{}: tensor '{}'{} is missing, but the model's config requires it",
                      checkpoint_.path().string(), name, expected());
    }
    if (tensor.info->shape != shape) {
      throw FileError("{}: tensor '{}' is {}, but the model's config requires{}",
                      tensor.file->string(), name, tensor.info->ToString(), expected());
    }
    const BlockFormat* format = FindBlockFormat(tensor.info->dtype);
    const bool block = checkpoint_.gguf() != nullptr;
    if (format == nullptr || format->to_float == nullptr || (!block && format->quantized())) {
      std::vector<std::string_view> read;
      for (const BlockFormat& known : BlockFormats()) {
        if (known.to_float != nullptr && (block || !known.quantized())) read.push_back(known.name);
      }
      throw Unsupported("{}: tensor '{}' is {}; {} are supported", tensor.file->string(), name,
                        tensor.info->ToString(), Join(read));
    }
    return {tensor.data, format, tensor.info->bytes(), tensor.paired_heads};
  }

  // Writes the tensor [rows, cols] in the dtype of `out`, rows in Transformers' order.
  void Convert(const Found& found, const MatrixView& out) const {
    constexpr int64_t kGrain = int64_t{1} << 16;  // values
    const BlockFormat& format = *found.format;
    const int64_t blocks = out.cols / format.values;
    const int64_t heads = found.paired_heads;
    LC_CHECK(heads == 0 || out.rows % (2 * heads) == 0);
    AsCpu(*stream_).pool().ParallelFor(
        out.rows, std::max<int64_t>(1, kGrain / out.cols), [&](int64_t begin, int64_t end, int) {
          std::vector<float> values(static_cast<size_t>(out.cols));
          for (int64_t row = begin; row < end; ++row) {
            const int64_t from = heads == 0 ? row : PairedRow(row, out.rows / heads);
            format.to_float(found.data + from * blocks * format.bytes, blocks, values.data());
            Round(values, out.dtype, out.Rows(row, 1).data);
          }
        });
  }

  // Where row `row` is if the rows of a head's two halves are stored in pairs.
  static int64_t PairedRow(int64_t row, int64_t head_rows) {
    const int64_t head = row / head_rows, at = row % head_rows, half = head_rows / 2;
    return head * head_rows + at % half * 2 + at / half;
  }

  const float* Vector(const std::string& name, int64_t n) {
    const Found found = Find(name, {n});
    float* out = NewVector(n);
    if (found.format->quantized()) {
      throw Unsupported("{}: the vector '{}' is quantized as {}", checkpoint_.path().string(), name,
                        found.format->name);
    }
    Convert(found, MatrixView::Of(out, DType::kF32, n, 1));
    return out;
  }

  void Report(uint64_t bytes) {
    done_ += bytes;
    if (converted_ && progress_) {
      progress_(static_cast<int64_t>(done_), static_cast<int64_t>(checkpoint_.file_bytes()));
    }
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  io::Checkpoint checkpoint_;
  const std::optional<DType> converted_;
  const bool passing_;
  const std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  bool mapped_ = false;  // a matrix is used where it is in its file
  uint64_t done_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> OpenCheckpointWeights(
    Device& device, const std::filesystem::path& model, std::optional<DType> converted,
    bool passing, std::function<void(int64_t done, int64_t total)> progress) {
  return std::make_unique<CheckpointWeights>(device, model, converted, passing,
                                             std::move(progress));
}

}  // namespace litecache::model
