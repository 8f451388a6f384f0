#include "model/quantized_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "base/block_layout.h"
#include "base/error.h"
#include "base/fp8.h"
#include "base/join.h"
#include "model/shown_quantization.h"

namespace litecache::model {
namespace {

using Layout = QuantizationConfig::Layout;
using CodeValues = std::array<float, 256>;

constexpr std::string_view kWeight = ".weight";

bool HasPlainValues(const io::TensorInfo& info) {
  const BlockFormat* format = FindBlockFormat(info.dtype);
  return format != nullptr && format->to_float != nullptr;
}

int64_t Pieces(int64_t length, int64_t piece) { return (length + piece - 1) / piece; }

uint32_t LoadWord(const std::byte* words, int64_t index) {
  uint32_t word;  // tensors may be unaligned
  std::memcpy(&word, words + index * 4, sizeof(word));
  return word;
}

uint8_t CodeAt(uint32_t word, int64_t place, int64_t bits) {
  return static_cast<uint8_t>(word >> (place * bits) & ((1U << bits) - 1));
}

const CodeValues& ValuesOf(Layout layout) {
  const auto make = [](bool fp8) {
    CodeValues values;
    for (int code = 0; code < 256; ++code) {
      values[static_cast<size_t>(code)] =
          fp8 ? FromFp8(static_cast<uint8_t>(code)) : static_cast<float>(code);
    }
    return values;
  };
  static const CodeValues fp8 = make(true), integers = make(false);
  return layout == Layout::kFp8 ? fp8 : integers;
}

std::string_view CodesName(Layout layout) {
  switch (layout) {
    case Layout::kRows:
      return "weight_packed";
    case Layout::kGptq:
    case Layout::kAwq:
      return "qweight";
    default:
      return "weight";
  }
}

void PutHalf(f16 half, blocks::Bytes2& out) {
  out[0] = static_cast<uint8_t>(half.bits & 0xff);
  out[1] = static_cast<uint8_t>(half.bits >> 8);
}

// The bits of output k of 8 in AWQ's words, which have those with even indices first.
int64_t AwqPlace(int64_t k) { return k % 2 * 4 + k / 2; }

}  // namespace

QuantizedMatrix::QuantizedMatrix(const QuantizationConfig& config, int64_t rows, int64_t cols)
    : config_(config),
      rows_(rows),
      cols_(cols),
      per_word_(32 / config.bits),
      scale_rows_(config.scale_rows == 0 ? rows : config.scale_rows),
      transposed_(config.layout == Layout::kGptq || config.layout == Layout::kAwq),
      groups_(config.scale_cols == 0 ? 1 : Pieces(cols, config.scale_cols)) {}

std::unique_ptr<QuantizedMatrix> QuantizedMatrix::Find(const io::Checkpoint& checkpoint,
                                                       const QuantizationConfig& stated,
                                                       const std::string& name, int64_t rows,
                                                       int64_t cols) {
  if (!name.ends_with(kWeight)) return nullptr;
  const std::string module = name.substr(0, name.size() - kWeight.size() + 1);
  const io::TensorInfo* weight = checkpoint.Find(name).info;
  if (weight != nullptr && HasPlainValues(*weight)) {
    const std::string divisors = DivisorsOf(stated, module);
    if (checkpoint.Find(divisors).info == nullptr) return nullptr;
    throw Unsupported("{}: tensor '{}' scales what '{}' reads, which is not quantized",
                      checkpoint.path().string(), divisors, name);
  }
  const QuantizationConfig config =
      stated.bits == 0 ? ShownByTensors(checkpoint, stated, module, rows, cols) : stated;
  if (checkpoint.Find(module + std::string(CodesName(config.layout))).info == nullptr) {
    return nullptr;
  }
  std::unique_ptr<QuantizedMatrix> matrix(new QuantizedMatrix(config, rows, cols));
  matrix->TakeCodes(checkpoint, module);
  matrix->TakeScales(checkpoint, module);
  matrix->TakeGroups(checkpoint, module);
  matrix->TakeDivisors(checkpoint, module);
  matrix->ChooseFormat();
  return matrix;
}

const std::byte* QuantizedMatrix::Take(const io::Checkpoint& checkpoint, const std::string& name,
                                       std::initializer_list<std::string_view> dtypes,
                                       const std::vector<int64_t>& shape) {
  const io::Checkpoint::Tensor tensor = checkpoint.Find(name);
  const std::string expected = io::TensorInfo{Join(dtypes, " or "), shape}.ToString();
  if (tensor.info == nullptr) {
    throw FileError("{}: tensor '{}', {}, is missing, but the model's config requires it",
                    checkpoint.path().string(), name, expected);
  }
  if (tensor.info->shape != shape ||
      std::ranges::find(dtypes, tensor.info->dtype) == dtypes.end()) {
    throw FileError("{}: tensor '{}' is {}, but the model's config requires {}",
                    tensor.file->string(), name, tensor.info->ToString(), expected);
  }
  bytes_ += tensor.info->bytes();
  return tensor.data;
}

void QuantizedMatrix::TakeCodes(const io::Checkpoint& checkpoint, const std::string& module) {
  std::string_view dtype = "I32";
  std::vector<int64_t> shape{rows_, cols_};
  switch (config_.layout) {
    case Layout::kFp8:
      dtype = "F8_E4M3";
      break;
    case Layout::kInt8:
      dtype = "I8";
      break;
    case Layout::kRows:
      shape = {rows_, Words(cols_)};
      break;
    case Layout::kGptq:
      shape = {Words(cols_), rows_};
      break;
    case Layout::kAwq:
      shape = {cols_, Words(rows_)};
      break;
  }
  codes_ = Take(checkpoint, module + std::string(CodesName(config_.layout)), {dtype}, shape);
  if (config_.layout != Layout::kRows) return;
  const std::string name = module + "weight_shape";
  int64_t stated[2];
  std::memcpy(stated, Take(checkpoint, name, {"I64"}, {2}), sizeof(stated));
  if (stated[0] != rows_ || stated[1] != cols_) {
    throw FileError("{}: tensor '{}' holds [{}, {}], but the model's config requires [{}, {}]",
                    checkpoint.Find(name).file->string(), name, stated[0], stated[1], rows_, cols_);
  }
}

void QuantizedMatrix::TakeScales(const io::Checkpoint& checkpoint, const std::string& module) {
  std::string name = module + std::string(config_.scale_name);
  // Some directories give the scale of a whole tensor the name of blocks' scales.
  const std::string of_blocks = module + "weight_scale_inv";
  if (config_.layout == Layout::kFp8 && checkpoint.Find(of_blocks).info != nullptr) {
    name = of_blocks;
  }
  const int64_t scale_rows = Pieces(rows_, scale_rows_);
  std::vector<int64_t> shape{scale_rows, groups_};
  if (transposed_) std::ranges::reverse(shape);
  const io::TensorInfo* info = checkpoint.Find(name).info;
  // The scale of a whole tensor has also one dimension or none, scales of rows have one.
  if (info != nullptr && groups_ == 1 && !transposed_) {
    if (info->shape.size() == 1) shape = {scale_rows};
    if (info->shape.empty() && scale_rows == 1) shape = {};
  }
  scales_ = Take(checkpoint, name, {"F16", "BF16", "F32"}, shape);
  scale_format_ = FindBlockFormat(checkpoint.Find(name).info->dtype);
  if (transposed_) {
    const std::string zeros = module + "qzeros";
    zeros_ = Take(checkpoint, zeros, {"I32"}, {groups_, Words(rows_)});
    zeros_label_ = fmt::format("{}: tensor '{}'", checkpoint.Find(zeros).file->string(), zeros);
  } else if (!config_.symmetric) {
    const std::string zeros = module + "weight_zero_point";
    if (config_.layout == Layout::kRows) {
      zeros_ = Take(checkpoint, zeros, {"I32"}, {Words(scale_rows), groups_});
    } else {
      zeros_ = Take(checkpoint, zeros, {"I8"}, shape);  // one for each scale
    }
  }
}

void QuantizedMatrix::TakeGroups(const io::Checkpoint& checkpoint, const std::string& module) {
  const int64_t size = config_.scale_cols == 0 ? cols_ : config_.scale_cols;
  group_of_.resize(static_cast<size_t>(cols_));
  for (int64_t i = 0; i < cols_; ++i) {
    group_of_[static_cast<size_t>(i)] = static_cast<int32_t>(i / size);
  }
  const std::string name = module + (config_.layout == Layout::kGptq ? "g_idx" : "weight_g_idx");
  const io::Checkpoint::Tensor tensor = checkpoint.Find(name);
  if (config_.layout == Layout::kAwq || (tensor.info == nullptr && !config_.reordered)) return;
  const std::byte* groups = Take(checkpoint, name, {"I32"}, {cols_});
  for (int64_t i = 0; i < cols_; ++i) {
    const auto group = static_cast<int32_t>(LoadWord(groups, i));
    if (group < 0 || group >= groups_) {
      throw FileError("{}: tensor '{}' holds {} at {}, but there are {} groups",
                      tensor.file->string(), name, group, i, groups_);
    }
    int32_t& known = group_of_[static_cast<size_t>(i)];
    in_order_ = in_order_ && group == known;
    known = group;
  }
}

void QuantizedMatrix::TakeDivisors(const io::Checkpoint& checkpoint, const std::string& module) {
  const std::string name = DivisorsOf(config_, module);
  if (checkpoint.Find(name).info == nullptr) return;
  const std::byte* data = Take(checkpoint, name, {"F16", "BF16", "F32"}, {cols_});
  divisors_.resize(static_cast<size_t>(cols_));
  FindBlockFormat(checkpoint.Find(name).info->dtype)->to_float(data, cols_, divisors_.data());
}

void QuantizedMatrix::ChooseFormat() {
  if (cols_ % blocks::kSmall != 0) return;
  const bool whole = config_.scale_cols % blocks::kSmall == 0 && divisors_.empty();
  const bool codes = config_.bits == 4 && whole && in_order_;
  format_ = FindBlockFormat(!codes ? "Q8_0" : config_.symmetric ? "Q4_0" : "Q4_1");
}

void QuantizedMatrix::ReadTile(int64_t first, int64_t stride, uint8_t* out) const {
  // Copies: bytes of `out` might otherwise be these members.
  const int64_t cols = cols_, per_word = per_word_, bits = config_.bits;
  const int64_t rows = std::min(kTileRows, rows_ - first), words = Words(cols);
  // Word i of a row's codes.
  const auto spread = [=](uint32_t word, int64_t row, int64_t i) {
    uint8_t* to = out + row * stride + i * per_word;
    const int64_t count = std::min(per_word, cols - i * per_word);
    for (int64_t k = 0; k < count; ++k) to[k] = CodeAt(word, k, bits);
  };
  switch (config_.layout) {
    case Layout::kFp8:
    case Layout::kInt8: {
      // Integers get codes from 0, with the middle as zero.
      const uint8_t flip = config_.layout == Layout::kInt8 ? 0x80 : 0;
      for (int64_t r = 0; r < rows; ++r) {
        const std::byte* from = codes_ + (first + r) * cols;
        uint8_t* to = out + r * stride;
        for (int64_t c = 0; c < cols; ++c) to[c] = std::to_integer<uint8_t>(from[c]) ^ flip;
      }
      break;
    }
    case Layout::kRows:
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < words; ++i) {
          spread(LoadWord(codes_, (first + r) * words + i), r, i);
        }
      }
      break;
    case Layout::kGptq:
      for (int64_t i = 0; i < words; ++i) {
        for (int64_t r = 0; r < rows; ++r) {
          spread(LoadWord(codes_, i * rows_ + first + r), r, i);
        }
      }
      break;
    case Layout::kAwq: {
      const int64_t row_words = Words(rows_);
      const std::byte* from = codes_ + first / per_word * 4;
      for (int64_t c = 0; c < cols; ++c, from += row_words * 4) {
        for (int64_t r = 0, i = 0; r < rows; r += per_word, ++i) {
          const uint32_t word = LoadWord(from, i);
          const int64_t count = std::min(per_word, rows - r);
          for (int64_t k = 0; k < count; ++k) {
            out[(r + k) * stride + c] = CodeAt(word, AwqPlace(k), bits);
          }
        }
      }
      break;
    }
  }
}

float QuantizedMatrix::Scale(int64_t row, int64_t group) const {
  const int64_t index = transposed_ ? group * rows_ + row : row / scale_rows_ * groups_ + group;
  float scale = 0;
  scale_format_->to_float(scales_ + index * scale_format_->bytes, 1, &scale);
  return scale;
}

float QuantizedMatrix::Zero(int64_t row, int64_t group) const {
  if (config_.layout == Layout::kFp8) return 0;
  const uint32_t middle = 1U << (config_.bits - 1);
  if (zeros_ == nullptr) return static_cast<float>(middle);
  uint32_t zero = 0;
  const int64_t at = row / scale_rows_;
  if (config_.layout == Layout::kInt8) {
    zero = std::to_integer<uint8_t>(zeros_[at * groups_ + group]) ^ middle;
  } else if (config_.layout == Layout::kRows) {
    zero = CodeAt(LoadWord(zeros_, at / per_word_ * groups_ + group), at % per_word_, config_.bits);
  } else {
    const uint32_t word = LoadWord(zeros_, group * Words(rows_) + row / per_word_);
    const int64_t place = row % per_word_;
    zero = CodeAt(word, config_.layout == Layout::kAwq ? AwqPlace(place) : place, config_.bits);
  }
  // Zero minus one is the largest code.
  if (config_.zeros_less_one) zero = (zero + 1) & (2 * middle - 1);
  if (config_.symmetric && zero != middle) {
    throw FileError(
        "{} puts zero at {} in row {}, group {}, but the model's config says that weights are "
        "symmetric, with zero at {}",
        zeros_label_, zero, row, group, middle);
  }
  return static_cast<float>(zero);
}

class QuantizedMatrix::Reader final : public StoredMatrix::Reader {
 public:
  explicit Reader(const QuantizedMatrix& matrix);
  void ToFloat(int64_t row, float* out) override;
  void ToBlocks(int64_t row, std::byte* out) override;

 private:
  const uint8_t* Load(int64_t row);  // codes of a row, and its groups' zeros_ and scales_

  const QuantizedMatrix& matrix_;
  int64_t stride_;
  int64_t first_ = -kTileRows;  // row of the tile
  std::vector<uint8_t> tile_;   // [kTileRows][stride_]: codes
  std::vector<float> zeros_, scales_;
  std::vector<float> values_;
};

std::unique_ptr<StoredMatrix::Reader> QuantizedMatrix::NewReader() const {
  return std::make_unique<Reader>(*this);
}

QuantizedMatrix::Reader::Reader(const QuantizedMatrix& matrix)
    : matrix_(matrix),
      // Rows that are a multiple of 4 KiB apart would share a few lines of the caches.
      stride_(matrix.cols_ + 64),
      tile_(static_cast<size_t>(std::min(kTileRows, matrix.rows_) * stride_)),
      zeros_(static_cast<size_t>(matrix.groups_)),
      scales_(static_cast<size_t>(matrix.groups_)),
      values_(matrix.format_ == nullptr ? 0 : static_cast<size_t>(matrix.cols_)) {}

const uint8_t* QuantizedMatrix::Reader::Load(int64_t row) {
  if (row < first_ || row >= first_ + kTileRows) {
    first_ = row / kTileRows * kTileRows;
    matrix_.ReadTile(first_, stride_, tile_.data());
  }
  for (int64_t group = 0; group < matrix_.groups_; ++group) {
    zeros_[static_cast<size_t>(group)] = matrix_.Zero(row, group);
    scales_[static_cast<size_t>(group)] = matrix_.Scale(row, group);
  }
  return tile_.data() + (row - first_) * stride_;
}

void QuantizedMatrix::Reader::ToFloat(int64_t row, float* out) {
  const uint8_t* codes = Load(row);
  const float* values = ValuesOf(matrix_.config_.layout).data();
  const float *zeros = zeros_.data(), *scales = scales_.data();
  const int32_t* groups = matrix_.group_of_.data();
  for (int64_t i = 0, cols = matrix_.cols_; i < cols; ++i) {
    out[i] = (values[codes[i]] - zeros[groups[i]]) * scales[groups[i]];
  }
  const std::vector<float>& divisors = matrix_.divisors_;
  for (size_t i = 0; i < divisors.size(); ++i) out[i] /= divisors[i];
}

void QuantizedMatrix::Reader::ToBlocks(int64_t row, std::byte* out) {
  const int64_t count = matrix_.cols_ / blocks::kSmall;
  if (matrix_.format_->name == "Q8_0") {
    ToFloat(row, values_.data());
    return matrix_.format_->from_float(values_.data(), count, out);
  }
  const uint8_t* codes = Load(row);
  for (int64_t b = 0; b < count; ++b, codes += blocks::kSmall, out += matrix_.format_->bytes) {
    const auto group = static_cast<size_t>(matrix_.group_of_[static_cast<size_t>(b * 32)]);
    const f16 scale(scales_[group]);
    blocks::Q4_1 block;
    PutHalf(scale, block.d);
    PutHalf(f16(-zeros_[group] * static_cast<float>(scale)), block.m);
    for (int i = 0; i < 16; ++i) {
      block.q[i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
    }
    if (!matrix_.config_.symmetric) {
      std::memcpy(out, &block, sizeof(block));
      continue;
    }
    blocks::Q4_0 middle;  // its zero is the middle code, too
    std::memcpy(middle.d, block.d, sizeof(middle.d));
    std::memcpy(middle.q, block.q, sizeof(middle.q));
    std::memcpy(out, &middle, sizeof(middle));
  }
}

}  // namespace litecache::model
