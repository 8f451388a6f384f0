#include "ops/cuda/attention/attention.h"

#include <fmt/format.h>

#include <string>
#include <tuple>

#include "ops/attention/attention.h"
#include "ops/cuda/device_tables.h"
#include "ops/cuda/step/rows.h"
#include "scoped_variable.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

struct Case {
  RowEncoding encoding;
  int64_t head_dim, kv_heads, group, page_rows;
  std::vector<std::pair<int32_t, int32_t>> parts;  // past, rows
  DType out = DType::kF32;
  float spread = 1;     // of q
  int64_t padding = 6;  // of out's rows
};

class CudaAttention : public DeviceTableTest {
 protected:
  // A matrix of the GPU, its rows `padding` elements apart; all of it poisoned.
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

  // Sequences over shuffled pages, one KV head missing in the table where there are several.
  void RunPaged(const Case& c) {
    SCOPED_TRACE(fmt::format("{} head_dim {}, {} KV heads, group {}, pages of {}, {} sequences",
                             Name(c.encoding), c.head_dim, c.kv_heads, c.group, c.page_rows,
                             c.parts.size()));
    Random random(static_cast<uint64_t>(c.head_dim * 131 + c.group * 17 + c.page_rows));
    const RowFormat format{c.encoding, c.head_dim};
    std::vector<int32_t> lists;
    int32_t list = 1;  // list 0 is another layer's
    for (int64_t h = 0; h < c.kv_heads; ++h) lists.push_back(h == 1 ? -1 : list++);
    int32_t context = 0, rows = 2;  // two rows are nobody's
    for (const auto& [past, count] : c.parts) {
      context = std::max(context, past + count);
      rows += count;
    }
    DeviceTable table(random, kResident, format, c.page_rows, lists,
                      static_cast<int64_t>(c.parts.size()),
                      (context + c.page_rows - 1) / c.page_rows);
    std::vector<StepSequence> sequences(c.parts.size());
    int32_t first = 1;
    for (size_t s = c.parts.size(); s-- > 0;) {  // rows in another order than sequences
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
    PagedAttention(*stream_, step, c.kv_heads, table.view(),
                   MatrixView::Of(Upload(q), rows, columns), q_heads, scale, out,
                   Scratch(step, q_heads, c.head_dim));
    const auto got = ReadRows(out);
    const float poison = Poison(c.out);
    std::vector<bool> written(static_cast<size_t>(rows));
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int32_t i = 0; i < sequences[s].rows; ++i) {
        const auto row = static_cast<size_t>(sequences[s].first_row + i);
        written[row] = true;
        for (int64_t j = 0; j < q_heads; ++j) {
          const int64_t head = j / c.group;
          const float* result = got[row].data() + j * c.head_dim;
          if (table.list(head) < 0) {
            ASSERT_EQ(result[0], poison) << "a head the table does not have";
            continue;
          }
          std::vector<const std::byte*> seen;
          for (int32_t t = 0; t <= sequences[s].past + i; ++t) {
            seen.push_back(table.Row(static_cast<int64_t>(s), head, t));
          }
          ExpectAttention(format, seen, q.data() + row * columns + j * c.head_dim, scale, c.out,
                          result, fmt::format("sequence {}, row {}, query head {}", s, i, j));
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

constexpr RowEncoding kPlain[] = {RowEncoding::kBF16, RowEncoding::kF32};

TEST_F(CudaAttention, DecodeHeadDimensions) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {6, 16, 64, 80, 96, 100, 128, 200, 256}) {
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
  Case c{RowEncoding::kBF16, 64, 4, 2, 32, {}};
  Random random(5);
  for (int i = testing::Rounds(70); i > 0; --i)
    c.parts.push_back({static_cast<int32_t>(random.Integer(0, 400)), 1});
  RunPaged(c);
}

// Enough heads for a warp each, on a GPU of up to 160 SMs; the last case has contexts too long for
// that.
TEST_F(CudaAttention, DecodeManyHeadsWithRowsOfTheirOwn) {
  Random random(6);
  for (const auto& [head_dim, longest, spread] : {std::tuple<int64_t, int64_t, float>{64, 150, 1},
                                                  {128, 90, 1},
                                                  {128, 200, 20},
                                                  {64, 30, 20},
                                                  {128, 2300, 1}}) {
    Case c{RowEncoding::kBF16, head_dim, 40, 1, 16, {{0, 1}, {15, 1}, {31, 1}, {32, 1}}};
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
    for (int64_t head_dim : {6, 16, 64, 80, 96, 128, 200, 256}) {
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

TEST_F(CudaAttention, PrefillAfterLongPast) {
  RunPaged(
      {RowEncoding::kBF16, 128, 1, 2, 128, {{testing::Tokens(3001), 90}, {64, 64}}, DType::kBF16});
}

// Outputs in bf16 and aligned rows: on Hopper FlashInfer's kernel, where it is compiled. Pages hold
// NaN behind the rows and where heads are missing.
TEST_F(CudaAttention, PrefillOnHopper) {
  const testing::ScopedVariable variable("LITECACHE_FLASHINFER", "1");
  const auto run = [&](int64_t head_dim, int64_t kv_heads, int64_t group, int64_t page_rows,
                       std::vector<std::pair<int32_t, int32_t>> parts, float spread = 1) {
    RunPaged({RowEncoding::kBF16, head_dim, kv_heads, group, page_rows, std::move(parts),
              DType::kBF16, spread, 8});
  };
  for (int64_t head_dim : {64, 128, 256}) {
    const int64_t page = 16384 / head_dim;
    run(head_dim, 2, 3, page, {{0, 2}});
    run(head_dim, 1, 1, page, {{0, 128}, {1, 1}, {127, 129}});
    // Warps that write before others have finished would show in some of many blocks.
    for (int i = testing::Rounds(3); i > 0; --i) {
      run(head_dim, 3, 4, page, {{0, 300}, {500, 191}, {1023, 65}, {64, 64}});
    }
    run(head_dim, 1, 2, page, {{testing::Tokens(3001), 90}}, 20.0f);
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
        8 * random.Integer(1, 40), std::move(parts));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, SharpSoftmax) {
  RunPaged({RowEncoding::kBF16, 64, 1, 4, 64, {{500, 1}, {20, 1}}, DType::kF32, 20.0f});
  RunPaged({RowEncoding::kBF16, 64, 1, 4, 64, {{200, 50}}, DType::kF32, 20.0f});
}

// The CPU operation over the same pages.
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

// Kernels of a graph may begin before those before them have ended: each link of the chain needs
// all of the one before, as its queries and as its newest rows.
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

// Scores beyond what exp takes and infinite ones of both signs: the result stays a mean of V.
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
        const MatrixView out = Output(DType::kF32, rows, 3 * kDim);
        PagedAttention(*stream_, step, 1, table.view(), MatrixView::Of(Upload(q), rows, 3 * kDim),
                       3, 0.125f, out, Scratch(step, 3, kDim));
        for (const auto& row : ReadRows(out)) {
          for (int64_t i = 0; i < 3 * kDim; ++i) {
            ASSERT_LT(std::abs(row[static_cast<size_t>(i)]), 10.0f)
                << Name(encoding) << ", " << rows << " rows, spread " << spread << ", column " << i;
          }
        }
      }
    }
  }
}

// What a layer's heads keep, drawn at random; rows that are not attended stay NaN.
struct HybridCase {
  RowEncoding encoding;
  int64_t head_dim, group, page_slots, page_rows;
  int32_t sink, recent, carry;
  double share;
  int32_t budget_tokens;
  std::vector<int32_t> contexts;
  RowEncoding codes = RowEncoding::kBF16;  // of cached slots; kBF16: they are rows
  float spread = 1;                        // of q
};

constexpr float kPreciseSpread = 100;  // of q; beyond it results have to be finite, no more
constexpr float kWideScales[] = {0, 1e-30f, 1e-3f, 0.02f, 1e5f};

class CudaHybridAttention : public CudaAttention {
 protected:
  // Writes cached slot i of codes in the order that attention has them, with its update; returns
  // the row's values. Most rows are encoded normal numbers, some any codes with any scales.
  std::vector<double> FillCodes(Random& random, const CodeSlots& codes, DeviceTable& slots,
                                int64_t s, int64_t h, int32_t i, uint32_t update) {
    const int64_t d = slots.view().format.head_dim;
    const RowFormat f32{RowEncoding::kF32, d}, format{codes.encoding, d};
    std::vector<std::byte> row(format.row_bytes()), plain(f32.row_bytes());
    FillRow(random, f32, plain.data());
    ConvertRow(f32, plain.data(), format, row.data());
    if (random.Integer(0, 7) == 0) {
      for (int64_t c = 0; c < 2 * d; ++c) {
        auto code = static_cast<uint8_t>(random.Integer(0, 255));
        if (codes.encoding == RowEncoding::kFp8 && (code & 0x7f) == 0x7f) code = 0;  // NaN
        row[static_cast<size_t>(c)] = std::byte{code};
      }
      const float scales[] = {kWideScales[random.Integer(0, 3)] / 10,
                              kWideScales[random.Integer(0, 4)]};
      std::memcpy(row.data() + 2 * d, scales, sizeof(scales));
    }
    std::byte* page = slots.Page(s, h, codes.first_page + i / codes.page_slots);
    const int32_t slot = i % codes.page_slots;
    std::vector<std::byte> whole(static_cast<size_t>(2 * d));
    const RowScales scales = SplitScales(format, row.data(), whole.data());
    for (int64_t c = 0; c < 2 * d; ++c) {
      const auto byte = static_cast<int32_t>(c % 16);
      const int32_t channel = c < d ? KeyChannel(byte) : ValueChannel(byte);
      page[slot * 2 * d + c] = whole[static_cast<size_t>(c - byte + channel)];
    }
    std::byte* arrays = page + codes.page_slots * 2 * d;
    std::memcpy(arrays + 4 * (codes.page_slots + slot), &update, sizeof(update));
    std::memcpy(arrays + 8 * (codes.page_slots + slot), &scales, sizeof(scales));
    return RowValues(format, row.data());
  }

  void Run(const HybridCase& c, uint64_t seed) {
    SCOPED_TRACE(fmt::format("{} and {} head_dim {}, group {}, sink {}, recent {}, carry {}",
                             Name(c.encoding), Name(c.codes), c.head_dim, c.group, c.sink, c.recent,
                             c.carry));
    Random random(seed);
    const RowFormat format{c.encoding, c.head_dim};
    const auto count = static_cast<int64_t>(c.contexts.size());
    // Heads: offloaded, resident and sparse, offloaded, resident and dense.
    constexpr int64_t kHeads = 4;
    const int32_t longest = *std::max_element(c.contexts.begin(), c.contexts.end());
    const int32_t ring = c.recent + c.carry + 1, cache_begin = c.sink + ring;
    const auto blocks = [](int64_t rows, int64_t page) { return (rows + page - 1) / page; };
    CodeSlots codes{.encoding = c.codes, .begin = cache_begin};
    int64_t slot_pages = blocks(cache_begin + longest, c.page_slots);
    if (c.codes != RowEncoding::kBF16) {
      codes.page_slots =
          CodeSlotsIn(c.page_slots * (static_cast<int64_t>(format.row_bytes()) + 12), c.head_dim);
      codes.first_page = static_cast<int32_t>(blocks(cache_begin, c.page_slots));
      slot_pages = codes.first_page + blocks(longest, codes.page_slots);
    }
    DeviceTable slots(random, kSlots, format, c.page_slots, {1, -1, 2, -1}, count, slot_pages, 12);
    slots.view().sink = c.sink;
    slots.view().ring = ring;
    DeviceTable resident(random, kResident, format, c.page_rows, {-1, 0, -1, 1}, count,
                         blocks(longest, c.page_rows));
    std::vector<StepSequence> sequences(c.contexts.size());
    std::vector<int32_t> selected(static_cast<size_t>((count + 3) * kHeads * longest), -1);
    std::vector<int32_t> selected_count(static_cast<size_t>((count + 3) * kHeads), -1);
    std::vector<std::vector<std::vector<std::vector<double>>>> attended(c.contexts.size());
    for (int64_t s = 0; s < count; ++s) {
      const int32_t n = c.contexts[static_cast<size_t>(s)];
      StepSequence& sequence = sequences[static_cast<size_t>(s)];
      sequence.first_row = static_cast<int32_t>(count - 1 - s);
      sequence.rows = 1;
      sequence.past = n - 1;
      const int32_t sink = std::min(n, c.sink);
      const int32_t recent = n - c.recent > c.sink ? n - c.recent : sink;
      const int32_t budget = c.budget_tokens > 0
                                 ? c.budget_tokens
                                 : std::max(1, static_cast<int32_t>(std::ceil(c.share * n - 1e-9)));
      std::vector<HeadState> states(3);
      for (int64_t h = 0; h < kHeads; ++h) {
        auto& rows = attended[static_cast<size_t>(s)].emplace_back();
        const auto attend = [&](DeviceTable& table, int64_t row) {
          FillRow(random, format, table.Row(s, h, row));
          rows.push_back(RowValues(format, table.Row(s, h, row)));
        };
        if (slots.list(h) >= 0) {
          HeadState& state = states[static_cast<size_t>(slots.list(h))];
          for (int32_t t = 0; t < sink; ++t) attend(slots, t);
          // Sometimes nothing is cached, or nothing of what is.
          state.used = static_cast<int32_t>(random.Integer(0, recent - sink));
          if (random.Integer(0, 3) == 0) state.used = 0;
          state.update = 7;
          const int64_t kind = random.Integer(0, 3);
          for (int32_t i = 0; i < state.used; ++i) {
            const int32_t slot = cache_begin + i;
            const bool mine = kind == 0 || (kind > 1 && random.Integer(0, 2) > 0);
            if (codes.page_slots > 0) {
              // What is not attended stays NaN, but for its update, some of it.
              if (mine || random.Integer(0, 1) == 0) {
                auto values = FillCodes(random, codes, slots, s, h, i, mine ? 7 : 6);
                if (mine) rows.push_back(std::move(values));
              }
              continue;
            }
            auto* updates =
                reinterpret_cast<uint32_t*>(slots.Page(s, h, slot / c.page_slots) +
                                            static_cast<size_t>(c.page_slots) * format.row_bytes());
            updates[c.page_slots + slot % c.page_slots] = mine ? 7 : 6;
            if (mine) attend(slots, slot);
          }
          state.window_begin =
              static_cast<int32_t>(random.Integer(std::max(sink, recent - 2 * c.carry), recent));
          for (int32_t t = std::max(n - c.recent - c.carry, state.window_begin); t < n; ++t) {
            attend(slots, slots.RowOf(t));
          }
        } else if (h == 3 || recent - sink <= budget) {
          for (int32_t t = 0; t < n; ++t) attend(resident, t);
        } else {
          const int64_t pair = s * kHeads + h;
          const std::vector<int32_t> chosen = Choose(random, recent - sink, budget);
          selected_count[static_cast<size_t>(pair)] = budget;
          for (int32_t t = 0; t < sink; ++t) attend(resident, t);
          for (int32_t i = 0; i < budget; ++i) {
            const int32_t position = sink + chosen[static_cast<size_t>(i)];
            selected[static_cast<size_t>(pair * longest + i)] = position;
            attend(resident, position);
          }
          for (int32_t t = recent; t < n; ++t) attend(resident, t);
        }
      }
      sequence.heads = Upload(states);
    }
    Place(slots);
    Place(resident);
    const StepView step = Step(sequences, {&slots, &resident});
    HybridTables tables;
    tables.slots = slots.view();
    tables.codes = codes;
    tables.resident = resident.view();
    tables.cache_begin = cache_begin;
    tables.recent = c.recent;
    tables.carry = c.carry;
    tables.budget_share = c.share;
    tables.budget_tokens = c.budget_tokens;
    tables.dense = Upload(std::vector<int32_t>{0, 0, 0, 1});
    tables.selected = Upload(selected);
    tables.selected_count = Upload(selected_count);
    tables.max_selected = longest;
    const int64_t q_heads = kHeads * c.group, columns = q_heads * c.head_dim;
    std::vector<float> q(static_cast<size_t>(count * columns));
    for (float& x : q) x = random.Normal(c.spread);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const MatrixView out = Output(DType::kF32, count, columns);
    HybridAttention(*stream_, step, kHeads, tables, MatrixView::Of(Upload(q), count, columns),
                    q_heads, scale, out, Scratch(step, q_heads, c.head_dim));
    const auto got = ReadRows(out);
    for (int64_t s = 0; s < count; ++s) {
      const auto row = static_cast<size_t>(sequences[static_cast<size_t>(s)].first_row);
      for (int64_t j = 0; j < q_heads; ++j) {
        if (c.spread > kPreciseSpread) {
          for (int64_t i = 0; i < c.head_dim; ++i) {
            ASSERT_TRUE(std::isfinite(got[row][static_cast<size_t>(j * c.head_dim + i)]))
                << "sequence " << s << ", query head " << j << ", element " << i;
          }
          continue;
        }
        ExpectAttention(c.encoding,
                        attended[static_cast<size_t>(s)][static_cast<size_t>(j / c.group)],
                        c.head_dim, q.data() + row * static_cast<size_t>(columns) + j * c.head_dim,
                        scale, DType::kF32, got[row].data() + j * c.head_dim,
                        fmt::format("sequence {} of {} tokens, query head {}", s,
                                    c.contexts[static_cast<size_t>(s)], j));
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(CudaHybridAttention, EveryKindOfHead) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {64, 80, 128}) {
      Run({encoding, head_dim, 4, 37, 32, 4, 16, 9, 0.1, 0, {1, 3, 5, 21, 22, 300, 1001}}, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaHybridAttention, ShapesAndBudgets) {
  Run({RowEncoding::kBF16, 64, 1, 100, 64, 0, 1, 0, 0.5, 0, {1, 2, 64, 129}}, 2);
  Run({RowEncoding::kBF16, 64, 8, 13, 64, 3, 5, 40, 0, 30, {2, 4, 9, 48, 500}}, 3);
  Run({RowEncoding::kBF16,
       128,
       4,
       120,
       128,
       4,
       64,
       64,
       0.1,
       0,
       {testing::Tokens(5000), 60, testing::Tokens(2000)}},
      4);
}

TEST_F(CudaHybridAttention, ManySequences) {
  HybridCase c{RowEncoding::kBF16, 64, 2, 50, 64, 4, 20, 10, 0.2, 0, {}};
  Random random(9);
  for (int i = testing::Rounds(40); i > 0; --i)
    c.contexts.push_back(static_cast<int32_t>(random.Integer(1, 250)));
  for (uint64_t seed = 0; seed < 3; ++seed) Run(c, 100 + seed);
}

constexpr RowEncoding kCodes[] = {RowEncoding::kFp8, RowEncoding::kInt8};

TEST_F(CudaHybridAttention, CachedCodesOfEveryHeadDimension) {
  for (RowEncoding codes : kCodes) {
    for (int64_t head_dim : {16, 48, 64, 80, 128, 144, 256}) {
      Run({RowEncoding::kBF16,
           head_dim,
           4,
           37,
           32,
           4,
           16,
           9,
           0.1,
           0,
           {1, 3, 5, 21, 22, 47, 300, 1001},
           codes},
          11);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaHybridAttention, CachedCodesOfEveryGroup) {
  for (int64_t group = 1; group <= 17; ++group) {
    Run({RowEncoding::kBF16, 64, group, 29, 32, 3, 7, 5, 0.2, 0, {2, 40, 333}, kCodes[group % 2]},
        12);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaHybridAttention, CachedCodesOfShapesAndBudgets) {
  for (RowEncoding codes : kCodes) {
    Run({RowEncoding::kBF16, 64, 1, 100, 64, 0, 1, 0, 0.5, 0, {1, 2, 64, 129}, codes}, 2);
    Run({RowEncoding::kBF16, 64, 8, 13, 64, 3, 5, 40, 0, 30, {2, 4, 9, 48, 500}, codes}, 3);
    Run({RowEncoding::kBF16,
         128,
         4,
         120,
         128,
         4,
         64,
         64,
         0.1,
         0,
         {testing::Tokens(5000), 60, testing::Tokens(2000)},
         codes},
        4);
  }
}

// Scores beyond what exp takes: the result stays a mean of V.
TEST_F(CudaHybridAttention, HugeScoresOverCodesNeverMakeNaN) {
  for (RowEncoding codes : kCodes) {
    for (float spread : {1e4f, 1e18f, 1e30f}) {
      Run({RowEncoding::kBF16, 64, 4, 37, 32, 4, 16, 9, 0.1, 0, {40, 300}, codes, spread}, 13);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaHybridAttention, CachedCodesOfManySequences) {
  HybridCase c{RowEncoding::kBF16, 64, 2, 50, 64, 4, 20, 10, 0.2, 0, {}, RowEncoding::kFp8};
  Random random(9);
  for (int i = testing::Rounds(40); i > 0; --i)
    c.contexts.push_back(static_cast<int32_t>(random.Integer(1, 250)));
  for (uint64_t seed = 0; seed < 3; ++seed) Run(c, 200 + seed);
}

}  // namespace
}  // namespace litecache::ops::cuda
