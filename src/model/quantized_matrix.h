// A matrix of a Hugging Face directory with quantized weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/block_format.h"
#include "io/checkpoint.h"
#include "model/quantization_config.h"
#include "model/stored_matrix.h"

namespace litecache::model {

// Every value is (code - zero) * scale, where a code of 8 bits may be the bits of an FP8 number;
// zero and scale belong to a group of columns of the row. Columns may have divisors.
class QuantizedMatrix final : public StoredMatrix {
 public:
  // The matrix whose plain tensor would be `name`, "….weight" [rows, cols]. Null: there is such a
  // plain tensor, or none of the matrix at all. Throws FileError for tensors that are missing or do
  // not fit the matrix, and for a g_idx that names no group; Unsupported for a plain matrix whose
  // columns have divisors. The checkpoint must outlive the result.
  static std::unique_ptr<QuantizedMatrix> Find(const io::Checkpoint& checkpoint,
                                               const QuantizationConfig& config,
                                               const std::string& name, int64_t rows, int64_t cols);

  // Q4_0 or Q4_1 with the file's own codes, exact but for scales and minima in f16, where every
  // block has one scale of 4-bit codes; else Q8_0, whose rounding is small beside that of the
  // file's. Null: there are no blocks for so many columns.
  const BlockFormat* format() const override { return format_; }
  uint64_t bytes() const override { return bytes_; }
  // Throws FileError, when a row is read, for a code of zero that contradicts the config.
  std::unique_ptr<StoredMatrix::Reader> NewReader() const override;

 private:
  class Reader;

  QuantizedMatrix(const QuantizationConfig& config, int64_t rows, int64_t cols);

  // Throws FileError if the tensor is missing or of another dtype or shape.
  const std::byte* Take(const io::Checkpoint& checkpoint, const std::string& name,
                        std::initializer_list<std::string_view> dtypes,
                        const std::vector<int64_t>& shape);
  void TakeCodes(const io::Checkpoint& checkpoint, const std::string& module);
  void TakeScales(const io::Checkpoint& checkpoint, const std::string& module);
  void TakeGroups(const io::Checkpoint& checkpoint, const std::string& module);
  void TakeDivisors(const io::Checkpoint& checkpoint, const std::string& module);
  void ChooseFormat();

  int64_t Words(int64_t codes) const { return (codes + per_word_ - 1) / per_word_; }
  // The codes of kTileRows rows, or of as many as there are; first: a multiple of kTileRows.
  void ReadTile(int64_t first, int64_t stride, uint8_t* out) const;
  float Scale(int64_t row, int64_t group) const;
  float Zero(int64_t row, int64_t group) const;

  QuantizationConfig config_;
  int64_t rows_, cols_;
  int64_t per_word_;               // codes in a word of 32 bits
  int64_t scale_rows_;             // rows that share a scale
  bool transposed_;                // scales and zeros are [groups, out]
  int64_t groups_;                 // scales of a row
  std::vector<int32_t> group_of_;  // [cols]
  bool in_order_ = true;           // every group's columns are neighbours
  const std::byte* codes_ = nullptr;
  const std::byte* scales_ = nullptr;
  const std::byte* zeros_ = nullptr;  // null: all are the middle of the range
  const BlockFormat* scale_format_ = nullptr;
  std::vector<float> divisors_;  // of columns; empty: none
  std::string zeros_label_;      // for messages
  const BlockFormat* format_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace litecache::model
