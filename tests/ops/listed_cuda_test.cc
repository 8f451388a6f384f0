// Attention over listed rows, and the best of listed candidates.
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
      const int32_t rows = 2 * most;  // of a list
      DeviceTable table(random, kSlots, format, page_rows, {2, 0, 1}, count,
                        (rows + page_rows - 1) / page_rows);
      std::vector<StepSequence> sequences(static_cast<size_t>(count));
      std::vector<int32_t> leading, counts, lists(static_cast<size_t>(pairs * most), -1);
      for (int64_t s = 0; s < count; ++s) {
        sequences[static_cast<size_t>(s)] = {
            .first_row = static_cast<int32_t>(s), .rows = 1, .past = 5};
        for (int64_t h = 0; h < kv_heads; ++h) {
          for (int32_t r = 0; r < rows; ++r) FillRow(random, format, table.Row(s, h, r));
          // A pair with neither, pairs with one of both.
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
      // Pairs behind the last sequence's are not read.
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
          // Every score is off by no more than its rounded query's.
          ASSERT_NEAR(log_sum, std::log(sum),
                      size * std::ldexp(1.0, encoding == RowEncoding::kBF16 ? -8 : -18))
              << where;
        }
      }
    }
  }
}

TEST_F(CudaListed, TheBestOfEachRange) {
  for (const int32_t longest : {1, 33, 5000, 70000}) {
    const int32_t most = testing::Tokens(longest);
    Random random(static_cast<uint64_t>(most));
    const int64_t kv_heads = 2, count = 5, stride = most + 3;
    std::vector<StepSequence> sequences(static_cast<size_t>(count));
    std::vector<SelectRange> ranges;
    for (int32_t s = 0; s < count; ++s) {
      sequences[static_cast<size_t>(s)] = {.first_row = s, .rows = 1, .past = most};
      const int32_t n = s == 3 ? 0 : std::max(1, most - s * most / 6);
      ranges.push_back({.begin = 7 * s, .end = 7 * s + n, .k = s == 2 ? 0 : 1 + s * n / 3});
    }
    const StepView step = Step(sequences, {});
    ranges.resize(static_cast<size_t>(step.capacity), {.begin = 0, .end = 1 << 20, .k = 1 << 19});
    std::vector<uint32_t> keys(static_cast<size_t>(step.capacity * kv_heads * stride));
    for (uint32_t& key : keys) key = static_cast<uint32_t>(random.Normal(40) + 1000);  // ties
    auto* selected = Poisoned<int32_t>(static_cast<size_t>(step.capacity * kv_heads * stride));
    auto* counts = Poisoned<int32_t>(static_cast<size_t>(step.capacity * kv_heads));
    SelectTop(*stream_, step, kv_heads, Upload(ranges), Upload(keys), stride, most, selected,
              counts, stride);
    const auto got = Download(selected, static_cast<size_t>(count * kv_heads * stride));
    const auto got_counts = Download(counts, static_cast<size_t>(count * kv_heads));
    for (int64_t pair = 0; pair < count * kv_heads; ++pair) {
      const SelectRange range = ranges[static_cast<size_t>(pair / kv_heads)];
      const int32_t n = range.end - range.begin, k = std::min(range.k, n);
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      const uint32_t* own = keys.data() + pair * stride;
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return own[a] > own[b]; });
      order.resize(static_cast<size_t>(k));
      std::sort(order.begin(), order.end());
      ASSERT_EQ(got_counts[static_cast<size_t>(pair)], k) << "pair " << pair;
      for (int32_t i = 0; i < k; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(pair * stride + i)],
                  range.begin + order[static_cast<size_t>(i)])
            << "pair " << pair << ", the " << i << "-th of " << k << " of " << n;
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
