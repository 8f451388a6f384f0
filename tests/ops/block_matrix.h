// Matrices of quantized blocks with random values, for tests.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "base/block_format.h"
#include "base/dtype.h"
#include "base/matrix_view.h"
#include "ops/ops_testing.h"

namespace litecache::ops {

// Where a format's blocks have f16 numbers.
inline std::vector<size_t> HalvesOf(std::string_view format) {
  static const std::map<std::string_view, std::vector<size_t>> kPlaces = {
      {"Q4_0", {0}},      {"Q4_1", {0, 2}}, {"Q5_0", {0}},    {"Q5_1", {0, 2}}, {"Q8_0", {0}},
      {"Q2_K", {80, 82}}, {"Q3_K", {108}},  {"Q4_K", {0, 2}}, {"Q5_K", {0, 2}}, {"Q6_K", {208}},
      {"IQ4_NL", {0}},    {"IQ4_XS", {0}},  {"MXFP4", {}}};
  return kPlaces.at(format);
}

inline std::vector<const BlockFormat*> Formats() {
  std::vector<const BlockFormat*> formats;
  for (const BlockFormat& format : BlockFormats()) {
    if (format.quantized() && format.to_float != nullptr) formats.push_back(&format);
  }
  return formats;
}

// Rows of random blocks: any bits, but for scales near 0.05. At an odd address, as a mapped file
// may have them.
class BlockMatrix {
 public:
  BlockMatrix(Random& random, const BlockFormat& format, int64_t rows, int64_t cols)
      : bytes_(static_cast<size_t>(rows * cols / format.values * format.bytes) + 1),
        view_(MatrixView::OfBlocks(bytes_.data() + 1, format, rows, cols)) {
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random.Integer(0, 255));
    for (size_t at = 1; at < bytes_.size(); at += static_cast<size_t>(format.bytes)) {
      if (format.name == "MXFP4") {
        bytes_[at] = static_cast<std::byte>(random.Integer(120, 127));
      }
      for (const size_t place : HalvesOf(format.name)) {
        const f16 half(random.Normal(0.05f));
        std::memcpy(&bytes_[at + place], &half, sizeof(half));
      }
    }
    ReadValues();
  }
  // Near `values` [rows, cols].
  BlockMatrix(const BlockFormat& format, const std::vector<float>& values, int64_t cols)
      : bytes_(values.size() / static_cast<size_t>(format.values) *
                   static_cast<size_t>(format.bytes) +
               1),
        view_(MatrixView::OfBlocks(bytes_.data() + 1, format,
                                   static_cast<int64_t>(values.size()) / cols, cols)) {
    format.from_float(values.data(), static_cast<int64_t>(values.size()) / format.values,
                      bytes_.data() + 1);
    ReadValues();
  }
  BlockMatrix(BlockMatrix&&) = default;

  const MatrixView& view() const { return view_; }
  const float* Row(int64_t r) const { return &values_[static_cast<size_t>(r * view_.cols)]; }

 private:
  void ReadValues() {
    const BlockFormat& format = *view_.format;
    values_.resize(static_cast<size_t>(view_.rows * view_.cols));
    format.to_float(bytes_.data() + 1, view_.rows * view_.cols / format.values, values_.data());
  }

  std::vector<std::byte> bytes_;
  MatrixView view_;
  std::vector<float> values_;
};

}  // namespace litecache::ops
