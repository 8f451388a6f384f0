#include "ops/dense/embedding_cpu.h"

#include <algorithm>

#include "ops/common/row_grain.h"
#include "ops/common/widen.h"

namespace litecache::ops::cpu {
namespace {

// y (= or +=) the values of a row of blocks.
void ReadBlocks(const BlockFormat& format, const std::byte* row, int64_t n, Epilogue epilogue,
                float* y) {
  if (epilogue == Epilogue::kStore) return format.to_float(row, n / format.values, y);
  constexpr int64_t kMostValues = 256;
  float values[kMostValues];
  for (int64_t i = 0; i < n; i += format.values, row += format.bytes) {
    format.to_float(row, 1, values);
    for (int64_t j = 0; j < format.values; ++j) y[i + j] += values[j];
  }
}

}  // namespace

void Embedding(ThreadPool& pool, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue, int64_t first) {
  const auto read = epilogue == Epilogue::kStore ? Widen : WidenAdd;
  pool.ParallelFor(y.rows, RowGrain(y.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = ids[t] - std::max<int64_t>(first, 0);
      if (at < 0 || at >= table.rows) {
        if (epilogue == Epilogue::kStore) std::fill_n(y.Row<float>(t), y.cols, 0.0f);
        continue;
      }
      const auto* row = static_cast<const std::byte*>(table.data) + at * table.RowBytes();
      if (table.format != nullptr) {
        ReadBlocks(*table.format, row, y.cols, epilogue, y.Row<float>(t));
      } else {
        read(table.dtype, row, y.cols, y.Row<float>(t));
      }
    }
  });
}

}  // namespace litecache::ops::cpu
