// Shared by the tests of attention: compares one over a whole table with sums in double precision.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/attention_cuda.h"
#include "ops/device_tables_cuda.h"

namespace litecache::ops::cuda {

struct AttentionCase {
  RowEncoding encoding;
  int64_t head_dim, kv_heads, group, page_rows;
  std::vector<std::pair<int32_t, int32_t>> parts;  // past, rows
  DType out = DType::kF32;
  float spread = 1;     // of q
  int64_t padding = 6;  // of out's rows
  bool sinks = false;
  float cap = 0;
};

class CudaAttention : public DeviceTableTest {
 protected:
  // A matrix on the GPU, its rows `padding` elements apart; all of it poisoned.
  MatrixView Output(DType dtype, int64_t rows, int64_t cols, int64_t padding = 6) {
    const int64_t stride = cols + padding;
    auto* data = Poisoned<std::byte>(static_cast<size_t>(rows * stride) * SizeOf(dtype));
    return {data, dtype, rows, cols, stride};
  }
  std::vector<std::vector<float>> ReadRows(const MatrixView& view) {
    const std::vector<std::byte> bytes =
        Download(static_cast<const std::byte*>(view.data),
                 static_cast<size_t>(view.rows * view.stride) * SizeOf(view.dtype));
    std::vector<std::vector<float>> rows;
    for (int64_t r = 0; r < view.rows; ++r) {
      auto& row = rows.emplace_back();
      for (int64_t c = 0; c < view.stride; ++c) {
        const auto i = static_cast<size_t>(r * view.stride + c);
        row.push_back(view.dtype == DType::kBF16
                          ? static_cast<float>(reinterpret_cast<const bf16*>(bytes.data())[i])
                          : reinterpret_cast<const float*>(bytes.data())[i]);
      }
    }
    return rows;
  }
  static float Poison(DType dtype) {
    uint32_t bits = 0xCDCDCDCD;
    if (dtype == DType::kBF16) bits = 0xCDCD0000;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  std::byte* Scratch(const StepView& step, int64_t q_heads, int64_t head_dim) {
    return Poisoned<std::byte>(AttentionScratchBytes(step.capacity, q_heads, head_dim));
  }

  // Sequences over shuffled pages; if there are several KV heads, one is missing in the table.
  void RunPaged(const AttentionCase& c) {
    SCOPED_TRACE(
        fmt::format("{} head_dim {}, {} KV heads, group {}, pages of {}, {} sequences{}, cap {}",
                    Name(c.encoding), c.head_dim, c.kv_heads, c.group, c.page_rows, c.parts.size(),
                    c.sinks ? ", sinks" : "", c.cap));
    Random random(static_cast<uint64_t>(c.head_dim * 131 + c.group * 17 + c.page_rows));
    const RowFormat format{c.encoding, c.head_dim};
    std::vector<int32_t> lists;
    int32_t list = 1;  // list 0 belongs to another layer
    for (int64_t h = 0; h < c.kv_heads; ++h) lists.push_back(h == 1 ? -1 : list++);
    int32_t context = 0, rows = 2;  // two rows belong to no sequence
    for (const auto& [past, count] : c.parts) {
      context = std::max(context, past + count);
      rows += count;
    }
    DeviceTable table(random, kResident, format, c.page_rows, lists,
                      static_cast<int64_t>(c.parts.size()),
                      (context + c.page_rows - 1) / c.page_rows);
    std::vector<StepSequence> sequences(c.parts.size());
    int32_t first = 1;
    for (size_t s = c.parts.size(); s-- > 0;) {  // rows in a different order from sequences
      sequences[s].first_row = first;
      sequences[s].past = c.parts[s].first;
      sequences[s].rows = c.parts[s].second;
      first += sequences[s].rows;
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        for (int32_t t = 0; table.list(h) >= 0 && t < sequences[s].past + sequences[s].rows; ++t) {
          FillRow(random, format, table.Row(static_cast<int64_t>(s), h, t));
        }
      }
    }
    Place(table);
    const StepView step = Step(sequences, {&table});
    const int64_t q_heads = c.kv_heads * c.group, columns = q_heads * c.head_dim;
    std::vector<float> q(static_cast<size_t>(rows * columns));
    for (float& x : q) x = random.Normal(c.spread);
    const MatrixView out = Output(c.out, rows, columns, c.padding);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    std::vector<float> sinks;
    if (c.sinks) sinks = RandomSinks(random, q_heads);
    PagedAttention(
        *stream_, step, c.kv_heads, table.view(), MatrixView::Of(Upload(q), rows, columns), q_heads,
        {scale, c.sinks ? Upload(sinks) : nullptr, c.cap}, out, Scratch(step, q_heads, c.head_dim));
    const auto got = ReadRows(out);
    const float poison = Poison(c.out);
    std::vector<bool> written(static_cast<size_t>(rows));
    for (size_t s = 0; s < sequences.size(); ++s) {
      const StepSequence& sequence = sequences[s];
      for (int32_t i = 0; i < sequence.rows; ++i) {
        written[static_cast<size_t>(sequence.first_row + i)] = true;
      }
      for (int64_t head = 0; head < c.kv_heads; ++head) {
        std::vector<std::vector<double>> context_rows;
        for (int32_t t = 0; table.list(head) >= 0 && t < sequence.past + sequence.rows; ++t) {
          context_rows.push_back(RowValues(format, table.Row(static_cast<int64_t>(s), head, t)));
        }
        for (int64_t i = 0; i < sequence.rows * c.group; ++i) {
          const int64_t query = i / c.group, j = head * c.group + i % c.group;
          const int64_t row = sequence.first_row + query;
          const float* result = got[static_cast<size_t>(row)].data() + j * c.head_dim;
          if (table.list(head) < 0) {
            ASSERT_EQ(result[0], poison) << "a head the table does not have";
            continue;
          }
          const auto seen = static_cast<size_t>(sequence.past + query + 1);
          ExpectAttention(c.encoding, std::span(context_rows).first(seen), c.head_dim,
                          q.data() + row * columns + j * c.head_dim, scale, c.out, result,
                          fmt::format("sequence {}, row {}, query head {}", s, query, j),
                          c.sinks ? sinks[static_cast<size_t>(j)] : kNoSink, c.cap);
          if (HasFatalFailure()) return;
        }
      }
    }
    for (size_t r = 0; r < got.size(); ++r) {
      for (size_t i = written[r] ? static_cast<size_t>(columns) : 0; i < got[r].size(); ++i) {
        ASSERT_EQ(got[r][i], poison) << "row " << r << ", column " << i << " is written to";
      }
    }
  }
};

inline constexpr RowEncoding kPlain[] = {RowEncoding::kBF16, RowEncoding::kF32};

}  // namespace litecache::ops::cuda
