#include "ops/dense/embedding.h"

#include "device/cpu/cpu_device.h"
#include "ops/common/available_cuda.h"
#include "ops/dense/embedding_cpu.h"
#include "ops/dense/embedding_cuda.h"

namespace litecache::ops {

void Embedding(Stream& stream, const MatrixView& table, std::span<const int32_t> ids,
               const MatrixView& y, Epilogue epilogue, int64_t first) {
  LC_CHECK(y.dtype == DType::kF32);
  LC_CHECK(static_cast<int64_t>(ids.size()) == y.rows && table.cols == y.cols,
           "table [{}, {}], {} ids, y [{}, {}]", table.rows, table.cols, ids.size(), y.rows,
           y.cols);
  if constexpr (cuda::kAvailable) {
    if (cuda::RunsHere(stream)) {
      return cuda::Embedding(stream, table, ids.data(), y, epilogue, first);
    }
  }
  if (table.dtype == DType::kBlocks) {
    LC_CHECK(table.format != nullptr && table.format->to_float != nullptr);
  } else {
    LC_CHECK(table.dtype == DType::kF32 || table.dtype == DType::kF16 ||
             table.dtype == DType::kBF16);
  }
  for (int32_t id : ids) {
    LC_CHECK(id >= 0 && (id < table.rows || first != kWholeTable), "id {} of {}", id, table.rows);
  }
  if (y.rows == 0 || y.cols == 0) return;
  cpu::Embedding(AsCpu(stream).pool(), table, ids, y, epilogue, first);
}

}  // namespace litecache::ops
