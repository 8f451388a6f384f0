// Attention of a decode step of policy litecache: the rows of each head, with cached slots as rows
// and as codes.
#include <string>

#include "ops/attention/attention.h"
#include "ops/attention_testing_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "test_size.h"

namespace litecache::ops::cuda {
namespace {

// The contents of a layer's heads, drawn at random; rows that are not attended stay NaN.
struct HybridCase {
  RowEncoding encoding;
  int64_t head_dim, group, page_slots, page_rows;
  int32_t sink, recent, carry;
  double share;
  int32_t budget_tokens;
  std::vector<int32_t> contexts;
  RowEncoding codes = RowEncoding::kBF16;  // of cached slots; kBF16: not codes but rows
  float spread = 1;                        // of q
  bool sinks = false;
  bool refresh = false;  // attended by two calls (HybridTables::refresh)
  float cap = 0;
};

constexpr float kPreciseSpread = 100;  // of q; with a larger spread, results only have to be finite
constexpr float kWideScales[] = {0, 1e-30f, 1e-3f, 0.02f, 1e5f};

class CudaHybridAttention : public CudaAttention {
 protected:
  // Writes cached slot i of codes in the order that attention reads, with its update number;
  // returns the row's values. Most rows are encoded normal numbers, some are arbitrary codes with
  // arbitrary scales.
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
      auto chunk = static_cast<int32_t>(c / 16);
      if (WholeCodeTiles(d, codes.page_slots)) chunk = TileChunk(slot, chunk);
      page[slot * 2 * d + chunk * 16 + byte] = whole[static_cast<size_t>(c - byte + channel)];
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
          // Sometimes nothing is cached, or none of the cached rows is attended.
          state.used = static_cast<int32_t>(random.Integer(0, recent - sink));
          if (random.Integer(0, 3) == 0) state.used = 0;
          state.update = 7;
          const int64_t kind = random.Integer(0, 3);
          for (int32_t i = 0; i < state.used; ++i) {
            const int32_t slot = cache_begin + i;
            const bool mine = kind == 0 || (kind > 1 && random.Integer(0, 2) > 0);
            if (codes.page_slots > 0) {
              // Rows that are not attended stay NaN; some of them have update numbers.
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
    tables.windows = {.recent = c.recent,
                      .carry = c.carry,
                      .budget = {.share = c.share, .tokens = c.budget_tokens}};
    tables.dense = Upload(std::vector<int32_t>{0, 0, 0, 1});
    tables.selected = Upload(selected);
    tables.selected_count = Upload(selected_count);
    tables.max_selected = longest;
    const int64_t q_heads = kHeads * c.group, columns = q_heads * c.head_dim;
    std::vector<float> q(static_cast<size_t>(count * columns));
    for (float& x : q) x = random.Normal(c.spread);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const MatrixView out = Output(DType::kF32, count, columns);
    std::vector<float> sinks;
    if (c.sinks) sinks = RandomSinks(random, q_heads);
    const Softmax softmax(scale, c.sinks ? Upload(sinks) : nullptr, c.cap);
    if (c.refresh) {
      std::vector<int32_t> refresh;
      for (int64_t i = 0; i < step.capacity * kHeads; ++i) {
        refresh.push_back(static_cast<int32_t>(random.Integer(0, 2)));
      }
      tables.refresh = Upload(refresh);
    }
    for (const bool refreshed : {false, true}) {
      if (refreshed && !c.refresh) continue;
      tables.refreshed = refreshed;
      HybridAttention(*stream_, step, kHeads, tables, MatrixView::Of(Upload(q), count, columns),
                      q_heads, softmax, out, Scratch(step, q_heads, c.head_dim));
    }
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
                                    c.contexts[static_cast<size_t>(s)], j),
                        c.sinks ? sinks[static_cast<size_t>(j)] : kNoSink, c.cap);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(CudaHybridAttention, EveryKindOfHead) {
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {64, 80, 128, 512}) {
      Run({encoding, head_dim, 4, 37, 32, 4, 16, 9, 0.1, 0, {1, 3, 5, 21, 22, 300, 1001}}, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaHybridAttention, ShapesAndBudgets) {
  // kBF16: cached slots are rows.
  for (RowEncoding codes : {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8}) {
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
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaHybridAttention, ManySequences) {
  for (RowEncoding codes : {RowEncoding::kBF16, RowEncoding::kFp8}) {
    HybridCase c{RowEncoding::kBF16, 64, 2, 50, 64, 4, 20, 10, 0.2, 0, {}, codes};
    Random random(9);
    for (int i = testing::Rounds(40); i > 0; --i)
      c.contexts.push_back(static_cast<int32_t>(random.Integer(1, 250)));
    for (uint64_t seed = 0; seed < 3; ++seed) Run(c, 100 + seed);
  }
}

constexpr RowEncoding kCodes[] = {RowEncoding::kFp8, RowEncoding::kInt8};

TEST_F(CudaHybridAttention, CachedCodesOfEveryHeadDimension) {
  for (RowEncoding codes : kCodes) {
    for (int64_t head_dim : {16, 48, 64, 80, 128, 144, 256, 320, 512}) {
      for (int64_t page_slots : {37, 5}) {  // whole tiles for some, or for none
        Run({RowEncoding::kBF16,
             head_dim,
             4,
             page_slots,
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
}

TEST_F(CudaHybridAttention, CachedCodesOfEveryGroup) {
  for (int64_t group = 1; group <= 17; ++group) {
    Run({RowEncoding::kBF16, 64, group, 29, 32, 3, 7, 5, 0.2, 0, {2, 40, 333}, kCodes[group % 2]},
        12);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaHybridAttention, SinksAndCaps) {
  const auto run = [&](HybridCase c, uint64_t seed) {
    for (const bool refresh : {false, true}) {
      c.refresh = refresh;
      c.sinks = true;
      c.cap = 0;
      Run(c, seed);
      c.sinks = refresh;
      c.cap = 1.7f;
      Run(c, seed);
    }
  };
  const std::vector<int32_t> contexts = {1, 3, 5, 21, 22, 300, 1001, testing::Tokens(5000)};
  run({RowEncoding::kF32, 80, 4, 37, 32, 4, 16, 9, 0.1, 0, contexts}, 14);
  for (RowEncoding codes : {RowEncoding::kBF16, RowEncoding::kFp8, RowEncoding::kInt8}) {
    for (int64_t group : {1, 8, 17}) {
      run({RowEncoding::kBF16, 64, group, 37, 32, 4, 16, 9, 0.1, 0, contexts, codes}, 15);
      if (HasFatalFailure()) return;
    }
    for (int64_t head_dim : {128, 256, 512}) {
      run({RowEncoding::kBF16, head_dim, 4, 37, 32, 4, 16, 9, 0.1, 0, contexts, codes}, 16);
    }
  }
}

// Scores outside exp's range: the result is still a mean of V, or part of one.
TEST_F(CudaHybridAttention, HugeScoresOverCodesNeverMakeNaN) {
  for (RowEncoding codes : kCodes) {
    for (float spread : {1e4f, 1e18f, 1e30f}) {
      for (bool sinks : {false, true}) {
        Run({RowEncoding::kBF16, 64, 4, 37, 32, 4, 16, 9, 0.1, 0, {40, 300}, codes, spread, sinks},
            13);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
