#include "model/stacked_experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/block_format.h"
#include "base/block_layout.h"
#include "base/error.h"

namespace litecache::model {
namespace {

using io::Checkpoint;

constexpr std::string_view kExperts = ".experts.";

// Where an expert's part is: in which tensor, and at which of whose columns (numbers) or rows
// (blocks).
struct Part {
  std::string stem;         // "model.layers.0.mlp.experts.gate_up_proj"
  std::string_view expert;  // "3", or "*"
  int64_t first = 0, step = 1;
};

// name: "….experts.EXPERT.PART" + suffix.
std::optional<Part> PartOf(std::string_view name, std::string_view suffix) {
  const size_t at = name.find(kExperts);
  if (at == name.npos || !name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  const size_t end = at + kExperts.size(), dot = name.find('.', end);
  if (dot == name.npos) return std::nullopt;
  const std::string_view part = name.substr(dot + 1);
  Part found{.stem = std::string(name.substr(0, end)), .expert = name.substr(end, dot - end)};
  if (part == "down_proj") {
    found.stem += part;
    return found;
  }
  if (part != "gate_proj" && part != "up_proj") return std::nullopt;
  found.stem += "gate_up_proj";
  found.first = part == "up_proj" ? 1 : 0;
  found.step = 2;
  return found;
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// Throws FileError unless the tensor's shape is [experts above `expert`, rest...] and its dtype one
// of numbers, or U8 if `bytes`.
void Require(const Checkpoint& checkpoint, const std::string& name, int64_t expert, bool bytes,
             std::vector<int64_t> rest) {
  const Checkpoint::Tensor tensor = checkpoint.Find(name);
  std::string expected = io::TensorInfo{"", rest}.ToString();
  if (tensor.info == nullptr) {
    throw FileError("{}: tensor '{}' [experts,{} is missing, but the model's config requires it",
                    checkpoint.path().string(), name, expected.substr(expected.find('[') + 1));
  }
  const io::TensorInfo& info = *tensor.info;
  const BlockFormat* format = FindBlockFormat(info.dtype);
  const bool typed = bytes
                         ? info.dtype == "U8"
                         : format != nullptr && format->to_float != nullptr && !format->quantized();
  if (typed && info.shape.size() == rest.size() + 1 && info.shape.front() > expert &&
      std::equal(rest.begin(), rest.end(), info.shape.begin() + 1)) {
    return;
  }
  throw FileError(
      "{}: tensor '{}' is {}, but the model's config requires {} [more than {} experts,{}",
      tensor.file->string(), name, info.ToString(), bytes ? "U8" : "BF16, F16 or F32", expert,
      expected.substr(expected.find('[') + 1));
}

// Numbers, transposed: row r is column first + step * r of the expert's [in, width].
class StackedNumbers final : public StoredMatrix {
 public:
  StackedNumbers(const Checkpoint::Tensor& tensor, const Part& part, int64_t expert, int64_t rows,
                 int64_t cols)
      : format_(*FindBlockFormat(tensor.info->dtype)),
        width_(part.step * rows),
        first_(part.first),
        step_(part.step),
        rows_(rows),
        cols_(cols),
        data_(tensor.data + expert * cols * width_ * format_.bytes) {}

  const BlockFormat* format() const override { return nullptr; }
  DType dtype() const override {
    return format_.name == "BF16"  ? DType::kBF16
           : format_.name == "F16" ? DType::kF16
                                   : DType::kF32;
  }
  uint64_t bytes() const override { return static_cast<uint64_t>(rows_ * cols_ * format_.bytes); }
  std::unique_ptr<Reader> NewReader() const override { return std::make_unique<Rows>(*this); }

 private:
  class Rows final : public Reader {
   public:
    explicit Rows(const StackedNumbers& matrix)
        : matrix_(matrix),
          line_(static_cast<size_t>(kTileRows * matrix.step_)),
          tile_(static_cast<size_t>(kTileRows * matrix.cols_)) {}
    void ToFloat(int64_t row, float* out) override {
      if (row < begin_ || row >= begin_ + kTileRows) Load(row / kTileRows * kTileRows);
      std::copy_n(tile_.data() + (row - begin_) * matrix_.cols_, matrix_.cols_, out);
    }
    void ToBlocks(int64_t, std::byte*) override { LC_CHECK(false, "numbers"); }

   private:
    void Load(int64_t begin) {
      const StackedNumbers& m = matrix_;
      const int64_t rows = std::min(kTileRows, m.rows_ - begin);
      begin_ = begin;
      for (int64_t c = 0; c < m.cols_; ++c) {
        const int64_t at = c * m.width_ + m.step_ * begin;
        m.format_.to_float(m.data_ + at * m.format_.bytes, m.step_ * rows, line_.data());
        for (int64_t r = 0; r < rows; ++r) {
          tile_[static_cast<size_t>(r * m.cols_ + c)] =
              line_[static_cast<size_t>(m.step_ * r + m.first_)];
        }
      }
    }

    const StackedNumbers& matrix_;
    int64_t begin_ = -kTileRows;
    std::vector<float> line_, tile_;
  };

  const BlockFormat& format_;
  int64_t width_, first_, step_, rows_, cols_;
  const std::byte* data_;
};

// MXFP4: row r is row first + step * r of the expert's.
class StackedBlocks final : public StoredMatrix {
 public:
  StackedBlocks(const std::byte* codes, const std::byte* scales, const Part& part, int64_t expert,
                int64_t rows, int64_t cols)
      : part_first_(expert * part.step * rows + part.first),
        step_(part.step),
        rows_(rows),
        blocks_(cols / blocks::kSmall),
        codes_(codes),
        scales_(scales) {}

  const BlockFormat* format() const override { return FindBlockFormat("MXFP4"); }
  uint64_t bytes() const override {
    return static_cast<uint64_t>(rows_ * blocks_) * sizeof(blocks::MXFP4);
  }
  std::unique_ptr<Reader> NewReader() const override { return std::make_unique<Rows>(*this); }

 private:
  class Rows final : public Reader {
   public:
    explicit Rows(const StackedBlocks& matrix)
        : matrix_(matrix), row_(static_cast<size_t>(matrix.blocks_) * sizeof(blocks::MXFP4)) {}
    void ToFloat(int64_t row, float* out) override {
      ToBlocks(row, row_.data());
      matrix_.format()->to_float(row_.data(), matrix_.blocks_, out);
    }
    void ToBlocks(int64_t row, std::byte* out) override {
      const int64_t first = (matrix_.part_first_ + matrix_.step_ * row) * matrix_.blocks_;
      for (int64_t b = 0; b < matrix_.blocks_; ++b, out += sizeof(blocks::MXFP4)) {
        const auto* codes = reinterpret_cast<const uint8_t*>(matrix_.codes_) + (first + b) * 16;
        blocks::MXFP4 block;
        block.exponent = std::to_integer<uint8_t>(matrix_.scales_[first + b]);
        for (int i = 0; i < 16; ++i) {
          // Code i, in byte i / 2, and code i + 16, in byte 8 + i / 2.
          const int shift = i % 2 * 4;
          block.q[i] = static_cast<uint8_t>((codes[i / 2] >> shift & 15) |
                                            (codes[8 + i / 2] >> shift & 15) << 4);
        }
        std::memcpy(out, &block, sizeof(block));
      }
    }

   private:
    const StackedBlocks& matrix_;
    std::vector<std::byte> row_;
  };

  int64_t part_first_, step_, rows_, blocks_;
  const std::byte *codes_, *scales_;
};

}  // namespace

std::unique_ptr<StoredMatrix> FindStackedExpert(const Checkpoint& checkpoint,
                                                const std::string& name, int64_t rows,
                                                int64_t cols) {
  const std::optional<Part> part = PartOf(name, ".weight");
  const std::optional<int64_t> expert = part ? Number(part->expert) : std::nullopt;
  if (!expert || checkpoint.Find(name).info != nullptr) return nullptr;
  if (const Checkpoint::Tensor numbers = checkpoint.Find(part->stem); numbers.info != nullptr) {
    Require(checkpoint, part->stem, *expert, /*bytes=*/false, {cols, part->step * rows});
    return std::make_unique<StackedNumbers>(numbers, *part, *expert, rows, cols);
  }
  const std::string codes = part->stem + "_blocks", scales = part->stem + "_scales";
  if (checkpoint.Find(codes).info == nullptr || cols % blocks::kSmall != 0) return nullptr;
  const int64_t width = part->step * rows, count = cols / blocks::kSmall;
  Require(checkpoint, codes, *expert, /*bytes=*/true, {width, count, 16});
  Require(checkpoint, scales, *expert, /*bytes=*/true, {width, count});
  return std::make_unique<StackedBlocks>(checkpoint.Find(codes).data, checkpoint.Find(scales).data,
                                         *part, *expert, rows, cols);
}

std::optional<StackedBias> FindStackedBias(const Checkpoint& checkpoint, const std::string& name,
                                           int64_t n) {
  const std::optional<Part> part = PartOf(name, ".bias");
  if (!part || part->expert != "*") return std::nullopt;
  // GGUF has each part's in a tensor of its own.
  StackedBias bias{.tensor = checkpoint.Find(name)};
  std::string stored = name;
  if (bias.tensor.info == nullptr) {
    stored = part->stem + "_bias";
    bias = {checkpoint.Find(stored), part->first, part->step};
  }
  if (bias.tensor.info == nullptr) {
    throw FileError("{}: tensor '{}' is missing, but the model's config requires it",
                    checkpoint.path().string(), stored);
  }
  const io::TensorInfo& info = *bias.tensor.info;
  const BlockFormat* format = FindBlockFormat(info.dtype);
  if (info.shape.size() != 2 || info.shape[0] * info.shape[1] != n * bias.step ||
      format == nullptr || format->to_float == nullptr || format->quantized()) {
    throw FileError(
        "{}: tensor '{}' is {}, but the model's config requires {} numbers in two "
        "dimensions",
        bias.tensor.file->string(), stored, info.ToString(), n * bias.step);
  }
  return bias;
}

}  // namespace litecache::model
