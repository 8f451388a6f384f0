// Computes addresses of rows without a division per row.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/common/row_format.h"

namespace litecache::ops::cpu {

// PagedRows::Row for many tokens. Two 64-bit divisions take as long as reading a row of 256 bytes;
// nearly always a page holds a power of two of tokens.
class RowAddress {
 public:
  explicit RowAddress(const PagedRows& rows)
      : pages_(rows.pages),
        row_bytes_(rows.format.row_bytes()),
        page_tokens_(static_cast<uint32_t>(rows.page_tokens)),
        shift_(std::has_single_bit(page_tokens_) ? std::countr_zero(page_tokens_) : -1) {}

  std::byte* operator()(int64_t token) const {
    const auto t = static_cast<uint32_t>(token);
    if (shift_ >= 0) return pages_[t >> shift_] + (t & (page_tokens_ - 1)) * row_bytes_;
    return pages_[t / page_tokens_] + t % page_tokens_ * row_bytes_;
  }

  size_t row_bytes() const { return row_bytes_; }

 private:
  std::byte* const* pages_;
  size_t row_bytes_;
  uint32_t page_tokens_;
  int shift_;
};

// Prefetches a row's cache lines.
inline void PrefetchRow(const std::byte* row, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 3);
}

}  // namespace litecache::ops::cpu
