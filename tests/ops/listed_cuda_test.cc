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
    for (const auto& [head_dim, group, most, cap] : {std::tuple{64, 1, 40, 0.0f},
                                                     {128, 4, 3000, 0.0f},
                                                     {80, 7, 500, 0.0f},
                                                     {128, 8, 17, 0.0f},
                                                     {128, 4, 300, 1.3f},
                                                     {512, 3, 100, 0.0f}}) {
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
      // Pairs after the last sequence's are not read.
      leading.resize(static_cast<size_t>(step.capacity * kv_heads), 1 << 20);
      counts.resize(leading.size(), 1 << 20);
      const std::vector<float> sinks = RandomSinks(random, q_heads);
      float *device_q = Upload(q), *device_sinks = Upload(sinks);
      const int32_t *device_leading = Upload(leading), *device_rows = Upload(lists);
      const int32_t* device_counts = Upload(counts);
      const RowLists first_rows{.leading = device_leading},
          listed_rows{.rows = device_rows, .count = device_counts, .max_rows = most},
          all_rows{.leading = device_leading,
                   .rows = device_rows,
                   .count = device_counts,
                   .max_rows = most};
      struct Result {
        std::vector<float> out, sums;
      };
      float poison = 0;
      const auto attend = [&](const RowLists& attended, const float* with) {
        auto* out = Poisoned<float>(q.size());
        auto* sums = Poisoned<float>(static_cast<size_t>(count * q_heads));
        poison = Download(sums, 1)[0];
        ListedAttention(
            *stream_, step, kv_heads, table.view(), attended,
            MatrixView::Of(device_q, count, columns), q_heads, {scale, with, cap},
            MatrixView::Of(out, count, columns), sums,
            Poisoned<std::byte>(AttentionScratchBytes(step.capacity, q_heads, head_dim)));
        return Result{Download(out, q.size()),
                      Download(sums, static_cast<size_t>(count * q_heads))};
      };
      const Result plain = attend(all_rows, nullptr), with_sinks = attend(all_rows, device_sinks);
      // Parts to merge, the sinks in one of them.
      const Result first = attend(first_rows, device_sinks), rest = attend(listed_rows, nullptr);
      for (int64_t s = 0; s < count; ++s) {
        for (int64_t j = 0; j < q_heads; ++j) {
          const int64_t h = j / group, pair = s * kv_heads + h;
          std::vector<const std::byte*> seen;
          for (int32_t r = 0; r < leading[static_cast<size_t>(pair)]; ++r) {
            seen.push_back(table.Row(s, h, r));
          }
          const size_t leading_rows = seen.size();
          for (int32_t i = 0; i < counts[static_cast<size_t>(pair)]; ++i) {
            seen.push_back(table.Row(s, h, lists[static_cast<size_t>(pair * most + i)]));
          }
          const auto at = static_cast<size_t>(s * columns + j * head_dim);
          const auto head = static_cast<size_t>(s * q_heads + j);
          const float* query = q.data() + at;
          if (seen.empty()) {
            for (const Result* result : {&plain, &with_sinks}) {
              ASSERT_EQ(result->out[at], poison);
              ASSERT_EQ(result->sums[head], poison);
            }
            continue;
          }
          double magnitudes = 1;
          std::vector<double> scores;
          for (const std::byte* row : seen) {
            double score = 0, magnitude = 0;
            for (int64_t c = 0; c < head_dim; ++c) {
              const double product = static_cast<double>(query[c]) * RowValue(format, row, c) *
                                     static_cast<double>(scale);
              score += product;
              magnitude += std::abs(product);
            }
            if (cap != 0) score = cap * std::tanh(score / cap);
            scores.push_back(score);
            magnitudes = std::max(magnitudes, magnitude);
          }
          const auto expect = [&](const float* out, double log_sum, double sink,
                                  const std::string& where) {
            ExpectAttention(format, seen, query, scale, DType::kF32, out, where, sink, cap);
            double highest = sink, sum = 0;
            for (double score : scores) highest = std::max(highest, score);
            for (double score : scores) sum += std::exp(score - highest);
            // The error of every score is at most that of its rounded query.
            ASSERT_NEAR(log_sum, highest + std::log(sum + std::exp(sink - highest)),
                        std::max(magnitudes, sink) *
                            std::ldexp(1.0, encoding == RowEncoding::kBF16 ? -8 : -18))
                << where;
          };
          const double sink = sinks[static_cast<size_t>(j)];
          const std::string where = fmt::format("sequence {}, query head {}", s, j);
          expect(plain.out.data() + at, plain.sums[head], kNoSink, where);
          expect(with_sinks.out.data() + at, with_sinks.sums[head], sink, where + ", sinks");
          if (leading_rows > 0 && leading_rows < seen.size()) {
            const double a = first.sums[head], b = rest.sums[head], highest = std::max(a, b);
            const double of_first = std::exp(a - highest), of_rest = std::exp(b - highest);
            std::vector<float> merged;
            for (size_t c = at; c < at + static_cast<size_t>(head_dim); ++c) {
              merged.push_back(static_cast<float>(
                  (of_first * first.out[c] + of_rest * rest.out[c]) / (of_first + of_rest)));
            }
            expect(merged.data(), highest + std::log(of_first + of_rest), sink, where + ", merged");
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
