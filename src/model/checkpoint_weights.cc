#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/block_format.h"
#include "base/error.h"
#include "base/join.h"
#include "device/cpu/cpu_device.h"
#include "io/checkpoint.h"
#include "io/other_formats.h"
#include "model/row_order.h"
#include "model/stacked_experts.h"
#include "model/stored_matrix.h"
#include "model/weight_types.h"
#include "model/weights.h"

namespace litecache::model {
namespace {

// Whether the bytes of a tensor of format `from` are a matrix of this type.
bool IsStoredAs(const BlockFormat& from, const MatrixView& type) {
  switch (type.dtype) {
    case DType::kBlocks:
      return &from == type.format;
    case DType::kBF16:
      return from.name == "BF16";
    case DType::kF16:
      return from.name == "F16";
    default:
      return from.name == "F32";
  }
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
  CheckpointWeights(Device& device, std::shared_ptr<const io::Checkpoint> checkpoint,
                    WeightTypes types, bool passing,
                    std::function<void(int64_t done, int64_t total)> progress)
      : device_(device),
        stream_(device.CreateStream()),
        checkpoint_(std::move(checkpoint)),
        types_(std::move(types)),
        passing_(passing),
        progress_(std::move(progress)) {}

  bool Has(const std::string& name) const override {
    return checkpoint_->Find(name).info != nullptr;
  }

  MatrixView Type(const std::string& name, int64_t rows, int64_t cols) const override {
    return types_.Of(name, rows, cols);
  }

  MatrixView Matrix(const std::string& name, int64_t rows, int64_t cols) override {
    StoredRows place = types_.RowsOf(name, rows);
    const std::unique_ptr<StoredMatrix> stored = types_.Stored(place.tensor, place.rows, cols);
    const Found found = stored != nullptr ? Found() : Find(place.tensor, {place.rows, cols});
    if (found.paired_heads != 0) place.order = RowOrder::Paired(rows, found.paired_heads);
    MatrixView view = types_.Of(name, rows, cols);
    const auto bytes = static_cast<size_t>(rows * view.RowBytes());
    Count(bytes);
    const auto address = reinterpret_cast<uintptr_t>(found.data);
    const bool aligned = view.dtype == DType::kBlocks || address % SizeOf(view.dtype) == 0;
    // Beside quantized matrices, which are read here, a mapped one would have Finish() read all
    // files once more.
    if (!types_.quantized_files() && found.format != nullptr && IsStoredAs(*found.format, view) &&
        aligned && place.order.in_order()) {
      mapped_ = true;
      // Views are mutable only by type; nothing writes through a weight's view.
      view.data = const_cast<std::byte*>(found.data);
      return view;
    }
    if (passing_) buffers_.clear();
    buffers_.push_back(device_.Allocate(bytes));
    view.data = buffers_.back().data();
    if (stored != nullptr) {
      Convert(*stored, types_.Rounding(name, cols), place.order, view);
      Report(stored->bytes());
    } else {
      Convert(found, types_.Rounding(name, cols), place.order, view);
      Report(found.bytes);
    }
    return view;
  }

  const float* NormWeight(const std::string& name, int64_t n, float added) override {
    float* const weight = Vector(name, n);
    for (int64_t i = 0; i < n; ++i) weight[i] += added;
    return weight;
  }
  const float* Bias(const std::string& name, int64_t n) override {
    const std::optional<StackedBias> stacked = FindStackedBias(*checkpoint_, name, n);
    if (!stacked) return Vector(name, n);
    const BlockFormat& format = *FindBlockFormat(stacked->tensor.info->dtype);
    float* const out = NewVector(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = stacked->first + stacked->step * i;
      format.to_float(stacked->tensor.data + at * format.bytes, 1, out + i);
    }
    return out;
  }

  void Finish(const std::function<void(int64_t done, int64_t total)>& progress) override {
    const auto total = static_cast<int64_t>(checkpoint_->file_bytes());
    // Conversion has already read what is not mapped.
    if (mapped_) {
      checkpoint_->Prefault(progress);
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
    bool negated_exponential = false;
  };

  Found Find(const std::string& name, const std::vector<int64_t>& shape) const {
    const io::Checkpoint::Tensor tensor = checkpoint_->Find(name);
    const auto expected = [&] { return io::TensorInfo{"", shape}.ToString(); };
    const auto hint = [&] {
      return types_.quantized_files() ? "" : io::UnreadQuantization(checkpoint_->path());
    };
    if (tensor.info == nullptr) {
      throw FileError("{}: tensor '{}'{} is missing, but the model's config requires it{}",
                      checkpoint_->path().string(), name, expected(), hint());
    }
    if (tensor.info->shape != shape) {
      throw FileError("{}: tensor '{}' is {}, but the model's config requires{}",
                      tensor.file->string(), name, tensor.info->ToString(), expected());
    }
    const BlockFormat* format = FindBlockFormat(tensor.info->dtype);
    const bool block = checkpoint_->gguf() != nullptr;
    if (format == nullptr || format->to_float == nullptr || (!block && format->quantized())) {
      std::vector<std::string_view> read;
      for (const BlockFormat& known : BlockFormats()) {
        if (known.to_float != nullptr && (block || !known.quantized())) read.push_back(known.name);
      }
      throw Unsupported("{}: tensor '{}' is {}; {} are supported{}", tensor.file->string(), name,
                        tensor.info->ToString(), Join(read), hint());
    }
    return {tensor.data, format, tensor.info->bytes(), tensor.paired_heads,
            tensor.negated_exponential};
  }

  // Writes the tensor [rows, cols] as `out` has it, rows in Transformers' order. rounding: values
  // are rounded to this format's, wherever `out` is not of it already; null: they are not.
  void Convert(const Found& found, const BlockFormat* rounding, const RowOrder& order,
               const MatrixView& out) const {
    constexpr int64_t kGrain = int64_t{1} << 16;  // values
    const BlockFormat& format = *found.format;
    const int64_t blocks = out.cols / format.values;
    const bool copies = IsStoredAs(format, out);
    AsCpu(*stream_).pool().ParallelFor(
        out.rows, std::max<int64_t>(1, kGrain / out.cols), [&](int64_t begin, int64_t end, int) {
          std::vector<float> values(static_cast<size_t>(out.cols));
          std::vector<std::byte> rounded;
          for (int64_t row = begin; row < end; ++row) {
            const std::byte* from = found.data + order(row) * blocks * format.bytes;
            auto* to = static_cast<std::byte*>(out.Rows(row, 1).data);
            if (copies) {
              std::memcpy(to, from, static_cast<size_t>(out.RowBytes()));
              continue;
            }
            format.to_float(from, blocks, values.data());
            Put(values, rounding, out, to, &rounded);
          }
        });
  }

  void Convert(const StoredMatrix& from, const BlockFormat* rounding, const RowOrder& order,
               const MatrixView& out) const {
    constexpr int64_t kTile = StoredMatrix::kTileRows;
    AsCpu(*stream_).pool().ParallelFor(
        (out.rows + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end, int) {
          const auto reader = from.NewReader();
          std::vector<float> values(static_cast<size_t>(out.cols));
          std::vector<std::byte> rounded;
          for (int64_t row = begin * kTile; row < std::min(end * kTile, out.rows); ++row) {
            auto* to = static_cast<std::byte*>(out.Rows(row, 1).data);
            if (out.dtype == DType::kBlocks && out.format == from.format()) {
              reader->ToBlocks(order(row), to);
              continue;
            }
            reader->ToFloat(order(row), values.data());
            Put(values, rounding, out, to, &rounded);
          }
        });
  }

  // Writes a row of `out`. rounded: for its blocks.
  static void Put(std::vector<float>& values, const BlockFormat* rounding, const MatrixView& out,
                  std::byte* to, std::vector<std::byte>* rounded) {
    if (out.dtype == DType::kBlocks) {
      out.format->from_float(values.data(), out.cols / out.format->values, to);
      return;
    }
    if (rounding != nullptr) {
      const int64_t count = out.cols / rounding->values;
      rounded->resize(static_cast<size_t>(count * rounding->bytes));
      rounding->from_float(values.data(), count, rounded->data());
      rounding->to_float(rounded->data(), count, values.data());
    }
    Round(values, out.dtype, to);
  }

  // Filters of a convolution have a dimension of their own between channels and taps; a single
  // number may have none.
  std::vector<int64_t> ShapeOf(const std::string& name, int64_t n) const {
    const io::TensorInfo* info = checkpoint_->Find(name).info;
    if (info != nullptr && info->shape == std::vector<int64_t>{1, n}) return info->shape;
    if (info != nullptr && info->shape.empty() && n == 1) return {};
    if (info == nullptr || info->shape.size() != 3 || !name.ends_with("conv1d.weight")) return {n};
    const int64_t taps = info->shape.back();
    return taps > 0 && n % taps == 0 ? std::vector<int64_t>{n / taps, 1, taps}
                                     : std::vector<int64_t>{n};
  }
  float* Vector(const std::string& name, int64_t n) {
    const Found found = Find(name, ShapeOf(name, n));
    float* out = NewVector(n);
    if (found.format->quantized()) {
      throw Unsupported("{}: the vector '{}' is quantized as {}", checkpoint_->path().string(),
                        name, found.format->name);
    }
    const RowOrder order =
        found.paired_heads == 0 ? RowOrder() : RowOrder::Paired(n, found.paired_heads);
    Convert(found, nullptr, order, MatrixView::Of(out, DType::kF32, n, 1));
    if (found.negated_exponential) TakeLogarithms(name, n, out);
    return out;
  }
  void TakeLogarithms(const std::string& name, int64_t n, float* values) const {
    for (int64_t i = 0; i < n; ++i) {
      const float value = values[i];
      if (!(value < 0) || !std::isfinite(value)) {
        throw FileError("{}: tensor '{}' holds {} at {}, but must be below 0 and finite",
                        checkpoint_->Find(name).file->string(), name, value, i);
      }
      values[i] = std::log(-value);
    }
  }

  void Report(uint64_t bytes) {
    done_ += bytes;
    if (progress_ && !mapped_) {
      progress_(static_cast<int64_t>(done_), static_cast<int64_t>(checkpoint_->file_bytes()));
    }
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  const WeightTypes types_;
  const bool passing_;
  const std::function<void(int64_t, int64_t)> progress_;
  std::vector<Buffer> buffers_;
  bool mapped_ = false;  // a matrix is used where it is in its file
  uint64_t done_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> OpenCheckpointWeights(
    Device& device, std::shared_ptr<const io::Checkpoint> checkpoint, WeightTypes types,
    bool passing, std::function<void(int64_t done, int64_t total)> progress) {
  return std::make_unique<CheckpointWeights>(device, std::move(checkpoint), std::move(types),
                                             passing, std::move(progress));
}

}  // namespace litecache::model
