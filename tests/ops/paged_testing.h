// Rows in pages at arbitrary places, for tests of operations that read and write them.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "ops/common/row_format.h"
#include "ops/ops_testing.h"

namespace litecache::ops {

// Pages for `tokens` rows, shuffled within one block. Bytes that no test wrote are 0xff: NaN in
// bf16, f32 and fp8, so reading them would show.
class PagedBlock {
 public:
  PagedBlock(Random& random, const RowFormat& format, int64_t tokens, int64_t page_tokens)
      : format_(format), page_tokens_(page_tokens) {
    const auto count = static_cast<size_t>((tokens + page_tokens - 1) / page_tokens);
    const size_t page_bytes = static_cast<size_t>(page_tokens) * format.row_bytes();
    memory_.assign(count * page_bytes, std::byte{0xff});
    for (size_t i = 0; i < count; ++i) pages_.push_back(memory_.data() + i * page_bytes);
    for (size_t i = count; i > 1; --i) {
      std::swap(pages_[i - 1],
                pages_[static_cast<size_t>(random.Integer(0, static_cast<int64_t>(i) - 1))]);
    }
  }
  PagedBlock(PagedBlock&&) = default;

  PagedRows rows() const { return {pages_.data(), page_tokens_, format_}; }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  RowFormat format_;
  int64_t page_tokens_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> pages_;
};

// `count` distinct numbers below `limit`, in random order.
inline std::vector<int32_t> Choose(Random& random, int64_t limit, int64_t count) {
  std::vector<int32_t> all(static_cast<size_t>(limit));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) {
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(random.Integer(i, limit - 1))]);
  }
  all.resize(static_cast<size_t>(count));
  return all;
}

// The value of an E4M3 code by the format's definition (finite codes).
inline double Fp8Value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

// Element i of a row: K first, then V.
inline double RowValue(const RowFormat& format, const std::byte* row, int64_t i) {
  switch (format.encoding) {
    case RowEncoding::kBF16:
      return static_cast<float>(reinterpret_cast<const bf16*>(row)[i]);
    case RowEncoding::kF32:
      return reinterpret_cast<const float*>(row)[i];
    default:
      break;
  }
  if (format.encoding == RowEncoding::kInt4) {
    const int64_t codes = (format.head_dim + 1) / 2, groups = (format.head_dim + 63) / 64;
    const int64_t part = i / format.head_dim, j = i % format.head_dim;
    f16 minimum, step;
    const std::byte* at = row + 2 * codes + (part * groups + j / 64) * 4;
    std::memcpy(&minimum, at, sizeof(minimum));
    std::memcpy(&step, at + 2, sizeof(step));
    const auto byte = static_cast<uint8_t>(row[part * codes + j / 2]);
    return static_cast<double>(static_cast<float>(minimum)) +
           (j % 2 == 0 ? byte & 15 : byte >> 4) * static_cast<double>(static_cast<float>(step));
  }
  float scale;
  std::memcpy(&scale, row + 2 * format.head_dim + (i < format.head_dim ? 0 : 4), sizeof(scale));
  const auto code = static_cast<uint8_t>(row[i]);
  if (format.encoding == RowEncoding::kFp8) return Fp8Value(code) * scale;
  return static_cast<double>(static_cast<int8_t>(code)) * scale;
}

// Sets element i of a plain row (bf16, f32).
inline void SetRowValue(const RowFormat& format, std::byte* row, int64_t i, float value) {
  if (format.encoding == RowEncoding::kBF16) {
    reinterpret_cast<bf16*>(row)[i] = bf16(value);
  } else {
    reinterpret_cast<float*>(row)[i] = value;
  }
}

inline void FillRow(Random& random, const RowFormat& format, std::byte* row, float scale = 1.0f) {
  for (int64_t i = 0; i < 2 * format.head_dim; ++i) {
    SetRowValue(format, row, i, random.Normal(scale));
  }
}

}  // namespace litecache::ops
