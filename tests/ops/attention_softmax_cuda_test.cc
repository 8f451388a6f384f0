// Softmaxes with sinks, with caps of scores and over windows, and of sharp and huge scores.
#include "ops/attention_testing_cuda.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaAttention, SinksOfOneQuery) {
  const auto run = [&](AttentionCase c) {
    c.sinks = true;
    RunPaged(c);
  };
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 64, 80, 128, 256}) {
      run({encoding, head_dim, 3, 5, 16, {{0, 1}, {37, 1}, {300, 1}}});
      if (HasFatalFailure()) return;
    }
  }
  for (int64_t group : {1, 8, 17, 40}) {
    run({RowEncoding::kBF16, 64, 3, group, 32, {{100, 1}, {15, 1}, {16, 1}}, DType::kBF16});
  }
  run({RowEncoding::kBF16, 64, 3, 8, 128, {{testing::Tokens(20000), 1}, {3, 1}}});
  run({RowEncoding::kBF16, 128, 2, 4, 64, {{500, 1}, {20, 1}}, DType::kF32, 20.0f});
  // Enough heads for one warp each (DecodeManyHeadsWithRowsOfTheirOwn).
  for (int64_t head_dim : {64, 128}) {
    AttentionCase c{RowEncoding::kBF16, head_dim, 40, 1, 16, {}};
    for (int32_t i = 0; i < 32; ++i) c.parts.push_back({4 * i, 1});
    run(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, SinksOfAPrompt) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 64, 80, 128, 256}) {
      RunPaged({encoding,
                head_dim,
                3,
                5,
                16,
                {{0, 37}, {70, 2}, {33, 1}},
                DType::kF32,
                head_dim == 80 ? 20.0f : 1.0f,
                6,
                true});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, CapsOfOneQuery) {
  const auto run = [&](AttentionCase c) {
    c.cap = 1.7f;
    RunPaged(c);
  };
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 64, 80, 128, 256}) {
      run({encoding, head_dim, 3, 5, 16, {{0, 1}, {37, 1}, {300, 1}}});
      if (HasFatalFailure()) return;
    }
  }
  run({RowEncoding::kBF16, 256, 3, 2, 64, {{testing::Tokens(20000), 1}, {3, 1}}, DType::kBF16});
  run({RowEncoding::kBF16, 128, 2, 17, 64, {{500, 1}, {20, 1}}, DType::kF32, 20.0f, 6, true});
  // Enough heads for one warp each (DecodeManyHeadsWithRowsOfTheirOwn).
  for (int64_t head_dim : {64, 128}) {
    AttentionCase c{RowEncoding::kBF16, head_dim, 40, 1, 16, {}};
    for (int32_t i = 0; i < 32; ++i) c.parts.push_back({4 * i, 1});
    run(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, CapsOfAPrompt) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 64, 80, 128, 256}) {
      for (float spread : {1.0f, 20.0f}) {
        AttentionCase c{encoding, head_dim, 3, 5, 16, {{0, 37}, {70, 2}, {33, 1}}};
        c.spread = spread;
        c.sinks = head_dim == 80;
        c.cap = 1.7f;
        RunPaged(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Tokens attend the first rows and a window, both in slots.
TEST_F(CudaAttention, WindowsWithSinksAndCaps) {
  struct Case {
    int64_t head_dim, group, page_rows;
    int32_t sink, window;
    bool sinks;
    float cap = 0;
  };
  for (const Case& c : {Case{64, 8, 16, 0, 128, true},
                        {64, 3, 24, 4, 100, false},
                        {80, 1, 64, 4, 1, true},
                        {128, 2, 16, 70, 33, true},
                        {256, 5, 16, 0, 64, true},
                        {512, 2, 16, 3, 64, true},
                        {128, 2, 16, 0, 50, false, 1.7f},
                        {256, 2, 24, 4, 77, true, 1.7f}}) {
    SCOPED_TRACE(fmt::format("head_dim {}, group {}, sink {}, window {}{}, cap {}", c.head_dim,
                             c.group, c.sink, c.window, c.sinks ? ", sinks" : "", c.cap));
    Random random(static_cast<uint64_t>(c.head_dim + c.window));
    constexpr int64_t kHeads = 2;
    const RowFormat format{RowEncoding::kBF16, c.head_dim};
    const std::vector<std::pair<int32_t, int32_t>> parts = {{0, 150}, {601, 70}, {90, 1}};
    const int32_t ring = c.window + 150;
    DeviceTable table(random, kSlots, format, c.page_rows, {1, 0}, 3,
                      (c.sink + ring + c.page_rows - 1) / c.page_rows);
    table.view().sink = c.sink;
    table.view().ring = ring;
    std::vector<StepSequence> sequences(parts.size());
    std::vector<std::vector<std::vector<double>>> context[kHeads];  // [sequence][token]
    int32_t rows = 0;
    for (size_t s = 0; s < parts.size(); ++s) {
      sequences[s] = {.first_row = rows, .rows = parts[s].second, .past = parts[s].first};
      rows += parts[s].second;
      for (int64_t h = 0; h < kHeads; ++h) {
        auto& tokens = context[h].emplace_back();
        for (int32_t t = 0; t < parts[s].first + parts[s].second; ++t) {
          std::byte* row = table.Row(static_cast<int64_t>(s), h, table.RowOf(t));
          FillRow(random, format, row);
          tokens.push_back(RowValues(format, row));
        }
      }
    }
    Place(table);
    const StepView step = Step(sequences, {&table});
    const int64_t q_heads = kHeads * c.group, columns = q_heads * c.head_dim;
    std::vector<float> q(static_cast<size_t>(rows * columns));
    for (float& x : q) x = random.Normal(1);
    const std::vector<float> sinks = RandomSinks(random, q_heads);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const MatrixView out = Output(DType::kF32, rows, columns);
    WindowAttention(*stream_, step, kHeads, table.view(), c.window,
                    MatrixView::Of(Upload(q), rows, columns), q_heads,
                    {scale, c.sinks ? Upload(sinks) : nullptr, c.cap}, out);
    const auto got = ReadRows(out);
    for (size_t s = 0; s < parts.size(); ++s) {
      for (int64_t i = 0; i < parts[s].second * q_heads; ++i) {
        const int64_t query = i / q_heads, j = i % q_heads, row = sequences[s].first_row + query;
        const int64_t end = parts[s].first + query + 1;
        std::vector<std::vector<double>> seen;
        for (int64_t t = 0; t < end; ++t) {
          if (t < c.sink || t >= end - c.window) {
            seen.push_back(context[j / c.group][s][static_cast<size_t>(t)]);
          }
        }
        ExpectAttention(RowEncoding::kBF16, seen, c.head_dim,
                        q.data() + row * columns + j * c.head_dim, scale, DType::kF32,
                        got[static_cast<size_t>(row)].data() + j * c.head_dim,
                        fmt::format("sequence {}, row {}, query head {}", s, query, j),
                        c.sinks ? sinks[static_cast<size_t>(j)] : kNoSink, c.cap);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaAttention, SharpSoftmax) {
  RunPaged({RowEncoding::kBF16, 64, 1, 4, 64, {{500, 1}, {20, 1}}, DType::kF32, 20.0f});
  RunPaged({RowEncoding::kBF16, 64, 1, 4, 64, {{200, 50}}, DType::kF32, 20.0f});
}

// Scores outside exp's range and infinite ones of both signs, without sinks and with the largest
// ones: the result is still a mean of V, or part of one.
TEST_F(CudaAttention, HugeScoresNeverMakeNaN) {
  for (RowEncoding encoding : kPlain) {
    for (int32_t rows : {1, 40}) {
      for (float spread : {1e4f, 1e18f, 1e30f, 3e38f}) {
        Random random(95);
        constexpr int64_t kDim = 64, kContext = 200;
        const RowFormat format{encoding, kDim};
        DeviceTable table(random, kResident, format, 64, {0}, 1, 4);
        for (int64_t t = 0; t < kContext; ++t) {
          FillRow(random, format, table.Row(0, 0, t));
          for (int64_t i = 0; i < kDim; ++i) {
            SetRowValue(format, table.Row(0, 0, t), i, t / 30 % 2 == 0 ? -2.0f : 2.0f);
          }
        }
        Place(table);
        StepSequence s;
        s.rows = rows;
        s.past = static_cast<int32_t>(kContext) - rows;
        const StepView step = Step({s}, {&table});
        std::vector<float> q(static_cast<size_t>(rows * 3 * kDim));
        for (size_t i = 0; i < q.size(); ++i) q[i] = i / kDim % 2 == 0 ? spread : -spread;
        const float* with = Upload(std::vector<float>{3e38f, -3e38f, 0});
        for (const float* sinks : {static_cast<const float*>(nullptr), with}) {
          const MatrixView out = Output(DType::kF32, rows, 3 * kDim);
          PagedAttention(*stream_, step, 1, table.view(), MatrixView::Of(Upload(q), rows, 3 * kDim),
                         3, {0.125f, sinks}, out, Scratch(step, 3, kDim));
          for (const auto& row : ReadRows(out)) {
            for (int64_t i = 0; i < 3 * kDim; ++i) {
              ASSERT_LT(std::abs(row[static_cast<size_t>(i)]), 10.0f)
                  << Name(encoding) << ", " << rows << " rows, spread " << spread << ", column "
                  << i << (sinks == nullptr ? "" : ", sinks");
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
