// Lists of rows in scattered pages of device or pinned memory, with a mirror on the host.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "ops/common/row_format.h"

namespace litecache::ops::cuda {

class PagedLists {
 public:
  // behind: bytes after the rows of a page, per row.
  PagedLists(CudaDevice& gpu, Device& where, std::mt19937_64& random, int32_t lists, int32_t rows,
             int32_t page_rows, const RowFormat& format, size_t behind = 0)
      : gpu_(gpu), lists_(lists), page_rows_(page_rows), format_(format) {
    const int32_t blocks = (rows + page_rows - 1) / page_rows;
    page_bytes_ = (static_cast<size_t>(page_rows) * (format.row_bytes() + behind) + 63) / 64 * 64;
    std::vector<size_t> order(static_cast<size_t>(blocks * lists));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    memory_ = where.Allocate(std::max<size_t>(order.size() * page_bytes_, 64));
    mirror_.assign(order.size() * page_bytes_, std::byte{0xCD});
    for (const size_t page : order) {
      places_.push_back(page * page_bytes_);
      pointers_.push_back(memory_.as<std::byte>() + page * page_bytes_);
    }
    table_ = gpu.Allocate(std::max<size_t>(pointers_.size() * sizeof(std::byte*), 8));
    gpu.Copy(table_.data(), pointers_.data(), pointers_.size() * sizeof(std::byte*));
    Push();
  }

  std::byte* const* device() const { return table_.as<std::byte* const>(); }
  int32_t lists() const { return lists_; }
  int32_t page_rows() const { return page_rows_; }
  const RowFormat& format() const { return format_; }

  std::byte* Row(int32_t list, int32_t row) {
    return Page(list, row / page_rows_) +
           static_cast<size_t>(row % page_rows_) * format_.row_bytes();
  }
  // The int32 of `row` after its page's rows.
  int32_t& Behind(int32_t list, int32_t row) {
    return reinterpret_cast<int32_t*>(Page(list, row / page_rows_) +
                                      static_cast<size_t>(page_rows_) *
                                          format_.row_bytes())[row % page_rows_];
  }
  // Element i of a row, K first.
  double Value(int32_t list, int32_t row, int64_t i) {
    const std::byte* at = Row(list, row);
    return format_.encoding == RowEncoding::kBF16
               ? static_cast<double>(static_cast<float>(reinterpret_cast<const bf16*>(at)[i]))
               : static_cast<double>(reinterpret_cast<const float*>(at)[i]);
  }
  void Set(int32_t list, int32_t row, int64_t i, float value) {
    std::byte* at = Row(list, row);
    if (format_.encoding == RowEncoding::kBF16) {
      reinterpret_cast<bf16*>(at)[i] = bf16(value);
    } else {
      reinterpret_cast<float*>(at)[i] = value;
    }
  }
  void Push() { gpu_.Copy(memory_.data(), mirror_.data(), mirror_.size()); }
  void Pull() { gpu_.Copy(mirror_.data(), memory_.data(), mirror_.size()); }

 private:
  std::byte* Page(int32_t list, int32_t block) {
    return mirror_.data() + places_[static_cast<size_t>(block * lists_ + list)];
  }
  CudaDevice& gpu_;
  int32_t lists_, page_rows_;
  RowFormat format_;
  size_t page_bytes_ = 0;
  Buffer memory_, table_;
  std::vector<std::byte> mirror_;
  std::vector<size_t> places_;
  std::vector<std::byte*> pointers_;
};

}  // namespace litecache::ops::cuda
