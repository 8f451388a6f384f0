#include "ops/dense/embedding_cpu.h"

#include "ops/common/row_grain.h"
#include "ops/common/widen.h"

namespace litecache::ops::cpu {

void Embedding(ThreadPool& pool, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue) {
  const auto read = epilogue == Epilogue::kStore ? Widen : WidenAdd;
  const int64_t row_bytes = table.stride * static_cast<int64_t>(SizeOf(table.dtype));
  pool.ParallelFor(y.rows, RowGrain(y.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const auto* row = static_cast<const std::byte*>(table.data) + ids[t] * row_bytes;
      read(table.dtype, row, y.cols, y.Row<float>(t));
    }
  });
}

}  // namespace litecache::ops::cpu
