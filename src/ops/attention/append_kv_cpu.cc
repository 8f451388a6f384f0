#include <algorithm>

#include "ops/attention/attention_cpu.h"
#include "ops/attention/kv_rows_cpu.h"
#include "ops/common/row_grain.h"
#include "ops/common/widen.h"

namespace litecache::ops::cpu {

void AppendKv(ThreadPool& pool, const KvGeometry& geometry, std::span<const KvSequence> sequences,
              const MatrixView& k, const MatrixView& v) {
  const int64_t d = geometry.head_dim;
  for (const KvSequence& sequence : sequences) {
    pool.ParallelFor(sequence.rows, RowGrain(2 * k.cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const float* k_row = k.Row<float>(sequence.first_row + i);
        const float* v_row = v.Row<float>(sequence.first_row + i);
        for (int64_t h = 0; h < geometry.kv_heads; ++h) {
          std::byte* row = KvRowAddress(geometry, sequence, h, sequence.past + i);
          if (geometry.dtype == DType::kBF16) {
            auto* out = reinterpret_cast<bf16*>(row);
            NarrowToBf16(k_row + h * d, d, out);
            NarrowToBf16(v_row + h * d, d, out + d);
          } else {
            auto* out = reinterpret_cast<float*>(row);
            std::copy_n(k_row + h * d, d, out);
            std::copy_n(v_row + h * d, d, out + d);
          }
        }
      }
    });
  }
}

}  // namespace litecache::ops::cpu
