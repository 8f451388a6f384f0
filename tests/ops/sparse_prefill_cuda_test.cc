// Sparse attention of prompts on a GPU: the choice of blocks, and both kernels that attend them.
#include "ops/sparse_prefill/sparse_prefill_cuda.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "ops/attention_testing_cuda.h"
#include "ops/sparse_prefill_reference.h"
#include "scoped_variable.h"

namespace litecache::ops::cuda {
namespace {

struct Case {
  int64_t head_dim, group, page_rows;
  int32_t past, rows;
  float cap = 0;
  int64_t kv_heads = 3;  // the second one is missing in the table

  int64_t q_heads() const { return kv_heads * group; }
};

class CudaSparsePrefill : public CudaAttention {
 protected:
  static constexpr int32_t kFirstRow = 2;

  // A chunk in a table. The keys of a block have a direction in common, by a random part, so that
  // blocks have different shares.
  struct Chunk {
    Case c;
    std::unique_ptr<DeviceTable> table;
    StepView step;
    MatrixView q;  // on the device
    std::vector<float> q_values;
    std::vector<std::vector<float>> k, v, own_q;  // by KV head, by KV head, by query head

    float scale() const { return 1 / std::sqrt(static_cast<float>(c.head_dim)); }
    Softmax SoftmaxWith(const float* sinks) const { return {scale(), sinks, c.cap}; }
    std::vector<int32_t> Heads() const {
      std::vector<int32_t> heads;
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        if (table->list(h) >= 0) heads.push_back(h);
      }
      return heads;
    }
    SparseHead Head(int64_t q_head) {
      const auto head = static_cast<size_t>(q_head / c.group);
      const int64_t context = c.past + c.rows;
      return {.k = MatrixView::Of(k[head].data(), context, c.head_dim),
              .v = MatrixView::Of(v[head].data(), context, c.head_dim),
              .q = MatrixView::Of(own_q[static_cast<size_t>(q_head)].data(), c.rows, c.head_dim),
              .past = c.past,
              .scale = scale(),
              .dtype = DType::kBF16,
              .query_rows = c.head_dim == 64 ? 192 : 128,
              .cap = c.cap};
    }
  };

  Chunk Make(Random& random, const Case& c) {
    Chunk chunk{.c = c};
    const RowFormat format{RowEncoding::kBF16, c.head_dim};
    std::vector<int32_t> lists;
    for (int32_t h = 0, list = 1; h < c.kv_heads; ++h) lists.push_back(h == 1 ? -1 : list++);
    const int32_t context = c.past + c.rows;
    chunk.table = std::make_unique<DeviceTable>(random, kResident, format, c.page_rows, lists, 1,
                                                (context + c.page_rows - 1) / c.page_rows);
    std::vector<float> direction(static_cast<size_t>(c.head_dim));
    for (float& x : direction) x = random.Normal(1);
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      auto& keys = chunk.k.emplace_back();
      auto& values = chunk.v.emplace_back();
      float part = 0;
      for (int32_t t = 0; t < context; ++t) {
        if (t % KeptBlocks::kRows == 0) part = random.Normal(0.5f);
        for (int64_t i = 0; i < 2 * c.head_dim; ++i) {
          const bool key = i < c.head_dim;
          const float common = key ? part * direction[static_cast<size_t>(i)] : 0;
          const bf16 value(random.Normal(1) + common);
          (key ? keys : values).push_back(static_cast<float>(value));
          if (chunk.table->list(h) < 0) continue;
          reinterpret_cast<bf16*>(chunk.table->Row(0, h, t))[i] = value;
        }
      }
    }
    Place(*chunk.table);
    std::vector<StepSequence> sequences(1);
    sequences[0].first_row = kFirstRow;
    sequences[0].past = c.past;
    sequences[0].rows = c.rows;
    chunk.step = Step(sequences, {chunk.table.get()});
    chunk.step.capacity = 1;
    const int64_t rows = kFirstRow + c.rows + 1, columns = c.q_heads() * c.head_dim;
    chunk.q_values.resize(static_cast<size_t>(rows * columns));
    chunk.own_q.resize(static_cast<size_t>(c.q_heads()));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < c.q_heads(); ++j) {
        const float part = random.Normal(1);
        for (int64_t i = 0; i < c.head_dim; ++i) {
          const float value = random.Normal(1) + part * direction[static_cast<size_t>(i)];
          chunk.q_values[static_cast<size_t>(r * columns + j * c.head_dim + i)] = value;
          if (r < kFirstRow || r >= kFirstRow + c.rows) continue;
          chunk.own_q[static_cast<size_t>(j)].push_back(value);
        }
      }
    }
    chunk.q = MatrixView::Of(Upload(chunk.q_values), rows, columns);
    return chunk;
  }

  // Bits on the host, on the device with their lists.
  DeviceKeptBlocks OnDevice(const KeptBlocks& bits, int64_t q_heads) {
    DeviceKeptBlocks kept;
    static_cast<KeptBlocks&>(kept) = bits;
    kept.list_size = bits.words * 32;
    const int64_t pairs = q_heads * bits.query_blocks;
    // Behind a list's end there is anything.
    std::vector<uint16_t> lists(static_cast<size_t>(pairs * kept.list_size), 0xffff);
    std::vector<int32_t> counts;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const uint32_t* words = bits.bits + pair * bits.words;
      int32_t count = 0;
      for (int32_t b = 0; b < kept.list_size; ++b) {
        if ((words[b / 32] >> b % 32 & 1) == 0) continue;
        lists[static_cast<size_t>(pair * kept.list_size + count++)] = static_cast<uint16_t>(b);
      }
      counts.push_back(count);
    }
    kept.bits = Upload(std::vector<uint32_t>(bits.bits, bits.bits + pairs * bits.words));
    kept.lists = Upload(lists);
    kept.counts = Upload(counts);
    return kept;
  }

  MatrixView Attend(const Chunk& chunk, DType dtype, const DeviceKeptBlocks* kept,
                    const float* sinks = nullptr) {
    const Case& c = chunk.c;
    const MatrixView out = Output(dtype, chunk.q.rows, chunk.q.cols, 8);
    PagedAttention(*stream_, chunk.step, c.kv_heads, chunk.table->view(), chunk.q, c.q_heads(),
                   chunk.SoftmaxWith(sinks), out, nullptr, kept);
    return out;
  }
};

TEST_F(CudaSparsePrefill, ChoosesTheLargestShares) {
  Random random(91);
  for (const Case& c : std::vector<Case>{{64, 3, 64, 0, 1500},
                                         {128, 4, 64, 4100, 700},
                                         {128, 1, 96, 5003, 131},
                                         {256, 2, 32, 1000, 517},
                                         {80, 2, 24, 2047, 300},
                                         {128, 2, 64, 9001, 64},
                                         {64, 2, 64, 3000, 200, 0.7f},
                                         {512, 2, 16, 1000, 200}}) {
    SCOPED_TRACE(fmt::format("head_dim {}, group {}, past {}, rows {}, cap {}", c.head_dim, c.group,
                             c.past, c.rows, c.cap));
    Chunk chunk = Make(random, c);
    for (const double mass : {0.5, 0.9, 0.99}) {
      const bool whole_end = mass == 0.9;
      auto* memory = Poisoned<std::byte>(
          SparsePrefillBytes(c.kv_heads, c.q_heads(), c.head_dim, c.rows, c.past + c.rows));
      const DeviceKeptBlocks kept =
          ChooseBlocks(*stream_, chunk.step, c.kv_heads, chunk.table->view(), chunk.Heads(),
                       chunk.q, c.q_heads(), chunk.SoftmaxWith(nullptr), mass, whole_end, memory);
      const auto pairs = static_cast<size_t>(c.q_heads() * kept.query_blocks);
      auto bits = Download(kept.bits, pairs * static_cast<size_t>(kept.words));
      const auto lists = Download(kept.lists, pairs * static_cast<size_t>(kept.list_size));
      const auto counts = Download(kept.counts, pairs);
      KeptBlocks on_host = kept;
      on_host.bits = bits.data();
      for (int64_t j = 0; j < c.q_heads(); ++j) {
        if (chunk.table->list(j / c.group) < 0) continue;
        const SparseHead head = chunk.Head(j);
        ExpectChosen(head, EstimateShares(head), on_host, j, mass, whole_end);
        if (HasFatalFailure()) return;
        for (int64_t i = 0; i < kept.query_blocks; ++i) {
          const auto pair = static_cast<size_t>(j * kept.query_blocks + i);
          int32_t count = 0;
          for (int32_t b = 0; b < kept.words * 32; ++b) {
            if (!IsKept(on_host, j, i, b)) continue;
            ASSERT_EQ(
                lists[pair * static_cast<size_t>(kept.list_size) + static_cast<size_t>(count++)],
                b);
          }
          ASSERT_EQ(counts[pair], count);
        }
      }
    }
  }
}

TEST_F(CudaSparsePrefill, AttendsTheKeptBlocksAndNoOthers) {
  Random random(92);
  for (const char* flashinfer : {"0", "1"}) {
    const testing::ScopedVariable variable("LITECACHE_FLASHINFER", flashinfer);
    for (const Case& c : std::vector<Case>{{64, 3, 256, 0, 1000},
                                           {64, 1, 64, 3001, 211},
                                           {128, 4, 64, 1900, 300},
                                           {128, 5, 96, 2048, 129},
                                           {256, 2, 32, 1000, 333},
                                           {80, 2, 24, 1500, 200},
                                           {128, 2, 64, 1500, 200, 1.7f},
                                           {256, 2, 32, 1000, 333, 1.7f},
                                           {512, 2, 16, 1000, 150}}) {
      SCOPED_TRACE(
          fmt::format("LITECACHE_FLASHINFER={}, head_dim {}, group {}, past {}, rows {}, "
                      "cap {}",
                      flashinfer, c.head_dim, c.group, c.past, c.rows, c.cap));
      const DType dtype = *flashinfer == '1' ? DType::kBF16 : DType::kF32;
      Chunk chunk = Make(random, c);
      const std::vector<float> sinks = RandomSinks(random, c.q_heads());
      const ChosenBlocks blocks = RandomBlocks(random, chunk.Head(0), c.q_heads(), 0.3);
      const DeviceKeptBlocks kept = OnDevice(blocks.kept, c.q_heads());
      const auto got = ReadRows(Attend(chunk, dtype, &kept, Upload(sinks)));
      for (int64_t j = 0; j < c.q_heads(); ++j) {
        const SparseHead head = chunk.Head(j);
        for (int64_t i = 0; i < c.rows; i += 1 + random.Integer(0, 6)) {
          const float* result = got[static_cast<size_t>(kFirstRow + i)].data() + j * c.head_dim;
          if (chunk.table->list(j / c.group) < 0) {
            ASSERT_EQ(result[0], Poison(dtype)) << "a head the table does not have";
            continue;
          }
          const AttendedQuery expected =
              AttendKept(head, i, blocks.kept.Of(j, i / blocks.kept.query_rows),
                         sinks[static_cast<size_t>(j)]);
          for (size_t d = 0; d < expected.out.size(); ++d) {
            const double rounding =
                dtype == DType::kBF16 ? std::ldexp(std::abs(expected.out[d]), -8) : 0;
            ASSERT_NEAR(result[d], expected.out[d], 2 * expected.bound[d] + rounding)
                << "query head " << j << ", row " << i << ", value " << d;
          }
        }
      }
      const ChosenBlocks all = RandomBlocks(random, chunk.Head(0), c.q_heads(), 1);
      const DeviceKeptBlocks every = OnDevice(all.kept, c.q_heads());
      ASSERT_EQ(ReadRows(Attend(chunk, dtype, &every)), ReadRows(Attend(chunk, dtype, nullptr)));
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
