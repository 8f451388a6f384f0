// Attention over listed rows.
#include "ops/attention/listed_cuda.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "ops/attention/attention_cuda.h"
#include "ops/device_tables_cuda.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

using CudaListed = DeviceTableTest;

TEST_F(CudaListed, RowsAndTheirLogSums) {
  for (const RowEncoding encoding : {RowEncoding::kBF16, RowEncoding::kF32}) {
    for (const auto& [head_dim, group, most] :
         {std::tuple{64, 1, 40}, {128, 4, 3000}, {80, 7, 500}, {128, 8, 17}}) {
      const int64_t kv_heads = 3, count = 4, pairs = kv_heads * count, page_rows = 48;
      SCOPED_TRACE(fmt::format("head_dim {}, group {}, {} rows", head_dim, group, most));
      Random random(static_cast<uint64_t>(head_dim + group + most));
      const RowFormat format{encoding, head_dim};
      const int32_t rows = 2 * most;  // per list
      DeviceTable table(random, kSlots, format, page_rows, {2, 0, 1}, count,
                        (rows + page_rows - 1) / page_rows);
      std::vector<StepSequence> sequences(static_cast<size_t>(count));
      std::vector<int32_t> leading, counts, lists(static_cast<size_t>(pairs * most), -1);
      for (int64_t s = 0; s < count; ++s) {
        sequences[static_cast<size_t>(s)] = {
            .first_row = static_cast<int32_t>(s), .rows = 1, .past = 5};
        for (int64_t h = 0; h < kv_heads; ++h) {
          for (int32_t r = 0; r < rows; ++r) FillRow(random, format, table.Row(s, h, r));
          // A pair with neither, and pairs with one of the two.
          const int64_t pair = s * kv_heads + h;
          const int32_t first = pair % 4 == 1 ? 0 : 1 + static_cast<int32_t>(pair) * most / 20;
          const int32_t listed = pair % 4 == 2 ? 0 : most - static_cast<int32_t>(pair);
          leading.push_back(pair == 5 ? 0 : first);
          counts.push_back(pair == 5 ? 0 : listed);
          const std::vector<int32_t> chosen = Choose(random, rows, listed);
          std::copy(chosen.begin(), chosen.end(), lists.begin() + pair * most);
        }
      }
      Place(table);
      const StepView step = Step(sequences, {&table});
      const int64_t q_heads = kv_heads * group, columns = q_heads * head_dim;
      std::vector<float> q(static_cast<size_t>(count * columns));
      for (float& x : q) x = random.Normal(1);
      const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
      auto* out = Poisoned<float>(q.size());
      auto* sums = Poisoned<float>(static_cast<size_t>(count * q_heads));
      const float poison = Download(sums, 1)[0];
      // Pairs after the last sequence's are not read.
      leading.resize(static_cast<size_t>(step.capacity * kv_heads), 1 << 20);
      counts.resize(leading.size(), 1 << 20);
      ListedAttention(*stream_, step, kv_heads, table.view(),
                      {.leading = Upload(leading),
                       .rows = Upload(lists),
                       .count = Upload(counts),
                       .max_rows = most},
                      MatrixView::Of(Upload(q), count, columns), q_heads, scale,
                      MatrixView::Of(out, count, columns), sums,
                      Poisoned<std::byte>(AttentionScratchBytes(step.capacity, q_heads, head_dim)));
      const std::vector<float> got = Download(out, q.size());
      const std::vector<float> got_sums = Download(sums, static_cast<size_t>(count * q_heads));
      for (int64_t s = 0; s < count; ++s) {
        for (int64_t j = 0; j < q_heads; ++j) {
          const int64_t h = j / group, pair = s * kv_heads + h;
          std::vector<const std::byte*> seen;
          for (int32_t r = 0; r < leading[static_cast<size_t>(pair)]; ++r) {
            seen.push_back(table.Row(s, h, r));
          }
          for (int32_t i = 0; i < counts[static_cast<size_t>(pair)]; ++i) {
            seen.push_back(table.Row(s, h, lists[static_cast<size_t>(pair * most + i)]));
          }
          const float* query = q.data() + s * columns + j * head_dim;
          const float* result = got.data() + s * columns + j * head_dim;
          const float log_sum = got_sums[static_cast<size_t>(s * q_heads + j)];
          if (seen.empty()) {
            ASSERT_EQ(result[0], poison);
            ASSERT_EQ(log_sum, poison);
            continue;
          }
          const std::string where = fmt::format("sequence {}, query head {}", s, j);
          ExpectAttention(format, seen, query, scale, DType::kF32, result, where);
          if (HasFatalFailure()) return;
          double sum = 0, size = 1;
          for (const std::byte* row : seen) {
            double score = 0, magnitude = 0;
            for (int64_t c = 0; c < head_dim; ++c) {
              const double product = static_cast<double>(query[c]) * RowValue(format, row, c) *
                                     static_cast<double>(scale);
              score += product;
              magnitude += std::abs(product);
            }
            sum += std::exp(score);
            size = std::max(size, magnitude);
          }
          // The error of every score is at most that of its rounded query.
          ASSERT_NEAR(log_sum, std::log(sum),
                      size * std::ldexp(1.0, encoding == RowEncoding::kBF16 ? -8 : -18))
              << where;
        }
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
