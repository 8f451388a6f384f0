#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/ops.h"
#include "ops/cpu/row_address.h"

namespace litecache::ops::cpu {

void RowAttention(ThreadPool& pool, const RowFormat& format, int64_t group,
                  std::span<const RowAttentionHead> heads, float scale) {
  const RowFormat wide{RowEncoding::kF32, format.head_dim};
  const RowConverter widen(format, wide);
  const auto d = static_cast<size_t>(format.head_dim);
  pool.ParallelFor(static_cast<int64_t>(heads.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t h = begin; h < end; ++h) {
      const RowAttentionHead& head = heads[static_cast<size_t>(h)];
      std::vector<float> rows;
      for (const RowPart& part : head.parts) {
        const RowAddress address(part.rows);
        for (int64_t i = 0; i < part.count; ++i) {
          rows.resize(rows.size() + 2 * d);
          widen(address(part.indices != nullptr ? part.indices[i] : part.begin + i),
                reinterpret_cast<std::byte*>(rows.data() + rows.size() - 2 * d));
        }
      }
      const size_t count = rows.size() / (2 * d);
      std::vector<float> p(count);
      for (int64_t j = 0; j < group; ++j) {
        const float* q = head.q + static_cast<size_t>(j) * d;
        float* out = head.out + static_cast<size_t>(j) * d;
        float highest = -3e38f, sum = 0;
        for (size_t r = 0; r < count; ++r) {
          float score = 0;
          for (size_t c = 0; c < d; ++c) score += q[c] * rows[r * 2 * d + c];
          p[r] = std::clamp(score * scale, -3e38f, 3e38f);
          highest = std::max(highest, p[r]);
        }
        std::fill_n(out, d, 0.0f);
        for (size_t r = 0; r < count; ++r) {
          const float weight = std::exp(p[r] - highest);
          sum += weight;
          for (size_t c = 0; c < d; ++c) out[c] += weight * rows[r * 2 * d + d + c];
        }
        for (size_t c = 0; c < d; ++c) out[c] /= sum;
      }
    }
  });
}

}  // namespace litecache::ops::cpu
