// Converts rows between formats on the CPU (ops/common/row_format.h); arguments are already
// checked.
#pragma once

#include <cstring>
#include <span>

#include "base/thread_pool.h"
#include "ops/common/row_format.h"

namespace litecache::ops::cpu {

// The kernel for a pair of formats, selected once for many rows.
class RowConverter {
 public:
  RowConverter(const RowFormat& from, const RowFormat& to);

  void operator()(const std::byte* source, std::byte* target) const {
    if (from_ == to_) {
      std::memcpy(target, source, row_bytes_);
    } else {
      convert_(from_, source, to_, head_dim_, target);
    }
  }

 private:
  void (*convert_)(RowEncoding from, const std::byte* source, RowEncoding to, int64_t head_dim,
                   std::byte* target);
  RowEncoding from_, to_;
  int64_t head_dim_;
  size_t row_bytes_;
};

void ConvertRows(ThreadPool& pool, std::span<const ConvertWork> work);
void CopyRows(const ConvertWork& work);

}  // namespace litecache::ops::cpu
