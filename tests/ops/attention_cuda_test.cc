#include <string>
#include <tuple>

#include "ops/attention/attention.h"
#include "ops/attention_testing_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "scoped_variable.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

TEST_F(CudaAttention, DecodeHeadDimensions) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 16, 64, 80, 96, 100, 128, 200, 256, 264, 320, 500, 512}) {
      RunPaged({encoding, head_dim, 2, 3, 16, {{0, 1}, {37, 1}, {300, 1}}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, DecodeGroupsAndPages) {
  for (int64_t group : {1, 4, 8, 16, 17, 40}) {
    RunPaged({RowEncoding::kBF16, 64, 3, group, 7 + group, {{100, 1}, {15, 1}, {16, 1}}});
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, DecodeLongContextsAreSplit) {
  RunPaged({RowEncoding::kBF16, 128, 2, 4, 128, {{testing::Tokens(20000), 1}}, DType::kBF16});
  RunPaged({RowEncoding::kBF16,
            64,
            2,
            2,
            256,
            {{testing::Tokens(9000), 1}, {3, 1}, {testing::Tokens(4100), 1}, {700, 1}}});
}

TEST_F(CudaAttention, DecodeManySequences) {
  AttentionCase c{RowEncoding::kBF16, 64, 4, 2, 32, {}};
  Random random(5);
  for (int i = testing::Rounds(70); i > 0; --i)
    c.parts.push_back({static_cast<int32_t>(random.Integer(0, 400)), 1});
  RunPaged(c);
}

// Enough heads for one warp each, on a GPU with up to 160 SMs; the contexts of the last case are
// too long for that.
TEST_F(CudaAttention, DecodeManyHeadsWithRowsOfTheirOwn) {
  Random random(6);
  for (const auto& [head_dim, longest, spread] : {std::tuple<int64_t, int64_t, float>{64, 150, 1},
                                                  {128, 90, 1},
                                                  {128, 200, 20},
                                                  {64, 30, 20},
                                                  {128, 2300, 1}}) {
    AttentionCase c{RowEncoding::kBF16, head_dim, 40, 1, 16, {{0, 1}, {15, 1}, {31, 1}, {32, 1}}};
    c.spread = spread;
    c.out = head_dim == 128 ? DType::kBF16 : DType::kF32;
    c.parts.push_back({static_cast<int32_t>(longest), 1});
    while (c.parts.size() < 32) {
      const auto most = std::min<int64_t>(longest, 200);
      c.parts.push_back({static_cast<int32_t>(random.Integer(0, most)), 1});
    }
    RunPaged(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, PrefillHeadDimensions) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 16, 64, 80, 96, 128, 200, 256, 264, 320, 500, 512}) {
      RunPaged({encoding, head_dim, 2, 3, 16, {{0, 37}, {70, 2}, {33, 1}}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, PrefillGroupsAndPages) {
  for (int64_t group : {1, 4, 5, 8}) {
    for (int64_t page_rows : {24, 64, 128}) {
      RunPaged({RowEncoding::kBF16, 64, 1, group, page_rows, {{0, 131}, {500, 65}}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, WideHeads) {
  for (int64_t group : {1, 7, 8, 9, 20}) {
    RunPaged({RowEncoding::kBF16, 512, 2, group, 16, {{100, 1}, {15, 1}, {700, 1}, {0, 1}}});
    RunPaged({RowEncoding::kBF16, 512, 1, group, 24, {{0, 131}, {300, 65}, {60, 3}}});
    if (HasFatalFailure()) return;
  }
  RunPaged({RowEncoding::kBF16, 512, 2, 4, 64, {{testing::Tokens(20000), 1}}, DType::kBF16});
  AttentionCase c{RowEncoding::kBF16, 512, 2, 4, 64, {{testing::Tokens(3001), 90}}, DType::kBF16};
  RunPaged(c);
  for (float cap : {0.0f, 1.7f}) {
    c.parts = {{200, 40}, {17, 5}};
    c.spread = 20;
    c.sinks = true;
    c.cap = cap;
    RunPaged(c);
    c.parts = {{200, 1}, {17, 1}};
    RunPaged(c);
  }
}

TEST_F(CudaAttention, PrefillAfterLongPast) {
  RunPaged(
      {RowEncoding::kBF16, 128, 1, 2, 128, {{testing::Tokens(3001), 90}, {64, 64}}, DType::kBF16});
}

// Outputs in bf16 and aligned rows: on Hopper this uses FlashInfer's kernel, if it is compiled.
// Pages hold NaN after the rows and for missing heads.
TEST_F(CudaAttention, PrefillOnHopper) {
  const testing::ScopedVariable variable("LITECACHE_FLASHINFER", "1");
  const auto run = [&](int64_t head_dim, int64_t kv_heads, int64_t group, int64_t page_rows,
                       std::vector<std::pair<int32_t, int32_t>> parts, float spread = 1,
                       bool sinks = false, float cap = 0) {
    RunPaged({RowEncoding::kBF16, head_dim, kv_heads, group, page_rows, std::move(parts),
              DType::kBF16, spread, 8, sinks, cap});
  };
  for (int64_t head_dim : {64, 128, 256}) {
    const int64_t page = 16384 / head_dim;
    run(head_dim, 2, 3, page, {{0, 2}});
    run(head_dim, 1, 1, page, {{0, 128}, {1, 1}, {127, 129}});
    // Warps that write before others have finished would show in at least one of many blocks.
    for (int i = testing::Rounds(3); i > 0; --i) {
      run(head_dim, 3, 4, page, {{0, 300}, {500, 191}, {1023, 65}, {64, 64}});
    }
    run(head_dim, 1, 2, page, {{testing::Tokens(3001), 90}}, 20.0f);
    run(head_dim, 3, 5, page, {{0, 300}, {500, 191}, {64, 64}}, 1, true);
    run(head_dim, 1, 8, page, {{testing::Tokens(3001), 90}}, 20.0f, true);
    run(head_dim, 2, 2, page, {{0, 300}, {500, 191}, {64, 64}}, 1, false, 1.7f);
    run(head_dim, 1, 2, page, {{testing::Tokens(3001), 90}}, 20.0f, true, 1.7f);
    for (int64_t page_rows : {8, 24, 32, 96, 1024}) {
      run(head_dim, 2, 2, page_rows, {{0, 131}, {333, 70}, {1000, 5}});
      if (HasFatalFailure()) return;
    }
  }
  Random random(73);
  for (int i = testing::Rounds(12); i > 0; --i) {
    std::vector<std::pair<int32_t, int32_t>> parts;
    for (int64_t n = random.Integer(1, 4); n > 0; --n) {
      parts.push_back({static_cast<int32_t>(random.Integer(0, 1) * random.Integer(0, 700)),
                       static_cast<int32_t>(random.Integer(1, 300))});
    }
    run(int64_t{64} << random.Integer(0, 2), random.Integer(1, 3), random.Integer(1, 8),
        8 * random.Integer(1, 40), std::move(parts), 1, i % 2 == 0);
    if (HasFatalFailure()) return;
  }
}

// The CPU operation on the same pages.
TEST_F(CudaAttention, AgreesWithTheCpu) {
  Random random(31);
  constexpr int64_t kHeads = 2, kGroup = 4, kDim = 128, kRows = 70, kPast = 333, kPage = 128;
  const RowFormat format{RowEncoding::kBF16, kDim};
  DeviceTable table(random, kResident, format, kPage, {0, 1}, 1, 4);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t t = 0; t < kPast + kRows; ++t) FillRow(random, format, table.Row(0, h, t));
  }
  Place(table);
  std::vector<std::vector<std::byte*>> pages(kHeads);
  std::vector<std::byte* const*> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t b = 0; b < 4; ++b) pages[static_cast<size_t>(h)].push_back(table.Page(0, h, b));
    heads.push_back(pages[static_cast<size_t>(h)].data());
  }
  const KvSequence sequence{
      .first_row = 0, .rows = kRows, .past = kPast, .pages = heads.data(), .pages_per_head = 4};
  const int64_t columns = kHeads * kGroup * kDim;
  Matrix q = Matrix::Normal(random, DType::kF32, kRows, columns);
  Matrix want(DType::kF32, kRows, columns);
  CpuDevice cpu(2);
  const auto cpu_stream = cpu.CreateStream();
  Attention(*cpu_stream,
            {.kv_heads = kHeads, .head_dim = kDim, .dtype = DType::kBF16, .page_tokens = kPage},
            {&sequence, 1}, q.view(), kHeads * kGroup, 0.09f, want.view());

  StepSequence s;
  s.rows = kRows;
  s.past = kPast;
  const StepView step = Step({s}, {&table});
  const MatrixView out = Output(DType::kF32, kRows, columns);
  float* device_q = Upload(std::vector<float>(q.Row(0), q.Row(0) + kRows * columns));
  PagedAttention(*stream_, step, kHeads, table.view(), MatrixView::Of(device_q, kRows, columns),
                 kHeads * kGroup, 0.09f, out, Scratch(step, kHeads * kGroup, kDim));
  const auto got = ReadRows(out);
  double error = 0, norm = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double x = want.At(r, c), y = got[static_cast<size_t>(r)][static_cast<size_t>(c)];
      error += (x - y) * (x - y);
      norm += x * x;
    }
  }
  // Two results of bf16 arithmetic, each within 2^-8 or so.
  EXPECT_LT(std::sqrt(error / norm), std::ldexp(1.0, -7));
}

// Kernels of a graph may begin before earlier ones have ended: each link of the chain needs all
// results of the previous one, as its queries and as its newest rows.
TEST_F(CudaAttention, AChainInAGraph) {
  Random random(57);
  constexpr int64_t kHeads = 2, kGroup = 4, kDim = 128, kPast = 3000, kPage = 128, kLinks = 6;
  constexpr int64_t kQHeads = kHeads * kGroup, kColumns = kQHeads * kDim;
  const RowFormat format{RowEncoding::kBF16, kDim};
  DeviceTable table(random, kResident, format, kPage, {0, 1}, 1, kPast / kPage + 1);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t t = 0; t < kPast; ++t) FillRow(random, format, table.Row(0, h, t));
  }
  Place(table);
  StepSequence s;
  s.rows = 1;
  s.past = static_cast<int32_t>(kPast);
  const StepView step = Step({s}, {&table});
  std::vector<MatrixView> links;
  for (int64_t i = 0; i <= kLinks; ++i) {
    links.push_back(MatrixView::Of(Poisoned<float>(static_cast<size_t>(kColumns)), 1, kColumns));
  }
  std::byte* scratch = Scratch(step, kQHeads, kDim);
  const auto issue = [&] {
    for (size_t i = 0; i < kLinks; ++i) {
      auto* values = links[i].Row<float>(0);
      const MatrixView k = MatrixView::Of(values, 1, kHeads * kDim);
      const MatrixView v = MatrixView::Of(values + kHeads * kDim, 1, kHeads * kDim);
      AppendRows(*stream_, step, kHeads, table.view(), k, v);
      PagedAttention(*stream_, step, kHeads, table.view(), links[i], kQHeads, 0.3f, links[i + 1],
                     scratch);
    }
  };
  for (int round = 0; round < 8; ++round) {
    std::vector<float> q(static_cast<size_t>(kColumns));
    for (float& x : q) x = random.Normal(3.0f);
    const auto start = [&] {
      stream_->Synchronize();
      gpu_->Copy(links[0].data, q.data(), q.size() * sizeof(float));
    };
    start();
    issue();
    std::vector<std::vector<float>> want;
    for (const MatrixView& link : links) {
      want.push_back(Download(link.Row<const float>(0), static_cast<size_t>(kColumns)));
      gpu_->Zero(link.data, static_cast<size_t>(kColumns) * sizeof(float));
    }
    start();
    AsCuda(*stream_).Run(1, issue);  // from the second round on a graph
    for (size_t i = 0; i < links.size(); ++i) {
      EXPECT_EQ(Download(links[i].Row<const float>(0), static_cast<size_t>(kColumns)), want[i])
          << "round " << round << ", link " << i;
    }
  }
}

// On a batch-invariant stream, a sequence's result has the bits that it has alone.
TEST_F(CudaAttention, BatchInvariantRowsDoNotDependOnTheOtherSequences) {
  AsCuda(*stream_).MakeBatchInvariant();
  Random random(58);
  constexpr int64_t kHeads = 2, kGroup = 4, kDim = 128, kPage = 128;
  constexpr int64_t kQHeads = kHeads * kGroup, kColumns = kQHeads * kDim;
  const std::vector<int64_t> contexts = {3000, 1, 40, 9000, 700, 3001, 129, 5000, 16};
  const auto count = static_cast<int64_t>(contexts.size());
  const RowFormat format{RowEncoding::kBF16, kDim};
  DeviceTable table(random, kResident, format, kPage, {0, 1}, count, 9000 / kPage + 1);
  std::vector<StepSequence> sequences;
  std::vector<float> q(static_cast<size_t>(count * kColumns));
  for (float& x : q) x = random.Normal(3.0f);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t context = contexts[static_cast<size_t>(i)];
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t t = 0; t < context; ++t) FillRow(random, format, table.Row(i, h, t));
    }
    StepSequence s;
    s.first_row = static_cast<int32_t>(i);
    s.rows = 1;
    s.past = static_cast<int32_t>(context) - 1;
    sequences.push_back(s);
  }
  Place(table);
  const MatrixView queries = MatrixView::Of(Upload(q), count, kColumns);
  StepView step = Step(sequences, {&table});
  step.capacity = static_cast<int32_t>(count);
  std::byte* scratch = Scratch(step, kQHeads, kDim);
  const MatrixView together = Output(DType::kF32, count, kColumns);
  PagedAttention(*stream_, step, kHeads, table.view(), queries, kQHeads, 0.3f, together, scratch);
  const MatrixView alone = Output(DType::kF32, count, kColumns);
  StepView one = step;
  one.capacity = 1;
  for (int64_t i = 0; i < count; ++i, ++one.sequences) {
    PagedAttention(*stream_, one, kHeads, table.view(), queries, kQHeads, 0.3f, alone, scratch);
    stream_->Synchronize();
  }
  EXPECT_EQ(ReadRows(together), ReadRows(alone));
}

}  // namespace
}  // namespace litecache::ops::cuda
