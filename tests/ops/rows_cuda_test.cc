#include "ops/rows/rows_cuda.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/device_tables_cuda.h"

namespace litecache::ops::cuda {
namespace {

constexpr RowEncoding kEncodings[] = {RowEncoding::kBF16, RowEncoding::kF32, RowEncoding::kFp8,
                                      RowEncoding::kInt8, RowEncoding::kInt4};

// 4-bit rows consist of whole words.
bool Exists(RowEncoding encoding, int64_t head_dim) {
  return encoding != RowEncoding::kInt4 || head_dim % 4 == 0;
}

// Rows of every format: zeros, small and large values.
void FillAny(Random& random, const RowFormat& format, std::byte* row) {
  const RowFormat f32{RowEncoding::kF32, format.head_dim};
  std::vector<float> values(static_cast<size_t>(2 * format.head_dim));
  const float spread = std::ldexp(1.0f, static_cast<int>(random.Integer(-30, 30)));
  const bool zeros = random.Integer(0, 9) == 0;
  for (float& x : values) x = zeros ? 0.0f : random.Normal(spread);
  ConvertRow(f32, reinterpret_cast<const std::byte*>(values.data()), format, row);
}

class CudaRows : public DeviceTableTest {
 protected:
  void ExpectTable(DeviceTable& table) {
    const std::vector<std::byte> got = Read(table, table.bytes().size());
    const auto at = std::mismatch(got.begin(), got.end(), table.bytes().begin());
    ASSERT_EQ(at.first, got.end())
        << "byte " << at.first - got.begin() << " of " << got.size() << ": got "
        << static_cast<int>(*at.first) << ", want " << static_cast<int>(*at.second);
  }
};

TEST_F(CudaRows, AppendMatchesTheCpu) {
  for (RowEncoding encoding : kEncodings) {
    for (int64_t head_dim : {6, 24, 64, 72, 80, 128, 256, 320, 512}) {
      for (int32_t ring : {0, 40}) {
        if (!Exists(encoding, head_dim)) continue;
        SCOPED_TRACE(std::string(Name(encoding)) + ", head_dim " + std::to_string(head_dim) +
                     ", ring " + std::to_string(ring));
        Random random(static_cast<uint64_t>(head_dim));
        const RowFormat format{encoding, head_dim}, f32{RowEncoding::kF32, head_dim};
        constexpr int64_t kHeads = 3;
        DeviceTable table(random, kSlots, format, 13, {2, -1, 1}, 3, 8);
        table.view().sink = ring > 0 ? 3 : 0;
        table.view().ring = ring;
        Place(table);
        std::vector<StepSequence> sequences(3);
        const int32_t past[] = {0, 60, 7}, rows[] = {9, 1, 30}, first[] = {31, 40, 1};
        for (size_t s = 0; s < 3; ++s) {
          sequences[s].past = past[s];
          sequences[s].rows = rows[s];
          sequences[s].first_row = first[s];
        }
        const StepView step = Step(sequences, {&table});
        constexpr int64_t kRows = 42;  // row 0 and the last one belong to no sequence
        const int64_t columns = kHeads * head_dim;
        std::vector<float> k(static_cast<size_t>(kRows * columns)), v(k.size());
        for (float& x : k) x = random.Normal(3);
        for (float& x : v) x = random.Normal(0.01f);
        AppendRows(*stream_, step, kHeads, table.view(), MatrixView::Of(Upload(k), kRows, columns),
                   MatrixView::Of(Upload(v), kRows, columns));
        std::vector<float> row(static_cast<size_t>(2 * head_dim));
        for (int64_t s = 0; s < 3; ++s) {
          for (int32_t i = 0; i < rows[s]; ++i) {
            for (int64_t h = 0; h < kHeads; ++h) {
              if (table.list(h) < 0) continue;
              const int64_t at = (first[s] + i) * columns + h * head_dim;
              std::copy_n(k.data() + at, head_dim, row.data());
              std::copy_n(v.data() + at, head_dim, row.data() + head_dim);
              ConvertRow(f32, reinterpret_cast<const std::byte*>(row.data()), format,
                         table.Row(s, h, table.RowOf(past[s] + i)));
            }
          }
        }
        ExpectTable(table);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// K and V in f32 and in bf16, as wide as in models and as narrow as one head; few rows and many.
TEST_F(CudaRows, AppendsKeysAndValuesOfEitherType) {
  for (int64_t head_dim : {8, 64, 72, 128, 256, 320, 512}) {
    for (int64_t heads : {1, 5, 40}) {
      for (int32_t tokens : {1, 3, 1100}) {
        if (heads * head_dim * tokens > 6000000) continue;
        for (int types = 0; types < 4; ++types) {
          const bool k_rounded = types % 2 == 1, v_rounded = types / 2 == 1;
          SCOPED_TRACE(std::to_string(heads) + " heads of " + std::to_string(head_dim) + ", " +
                       std::to_string(tokens) + " tokens, in bf16: " + (k_rounded ? "K" : "") +
                       (v_rounded ? "V" : ""));
          Random random(static_cast<uint64_t>(head_dim + heads + tokens + types));
          const RowFormat format{RowEncoding::kBF16, head_dim}, f32{RowEncoding::kF32, head_dim};
          std::vector<int32_t> lists(static_cast<size_t>(heads));
          for (int64_t h = 0; h < heads; ++h) {
            lists[static_cast<size_t>(h)] = static_cast<int32_t>((h * 3 + 1) % heads);
          }
          if (heads > 1) lists[1] = -1;
          // The second sequence has most of the rows, and begins in the middle of a page.
          const int32_t past[] = {0, 19}, rows[] = {1, tokens};
          const int64_t blocks = (19 + tokens) / 16 + 1;
          DeviceTable table(random, kSlots, format, 16, lists, 2, blocks);
          Place(table);
          std::vector<StepSequence> sequences(2);
          for (size_t s = 0; s < 2; ++s) {
            sequences[s].past = past[s];
            sequences[s].rows = rows[s];
            sequences[s].first_row = s == 0 ? tokens + 1 : 1;
          }
          const StepView step = Step(sequences, {&table});
          // Two rows belong to no sequence.
          const int64_t count = tokens + 3, columns = heads * head_dim;
          std::vector<float> k(static_cast<size_t>(count * columns)), v(k.size());
          for (float& x : k) x = random.Normal(3);
          for (float& x : v) x = random.Normal(0.01f);
          const auto upload = [&](std::vector<float>& values, bool rounded) {
            if (!rounded) return MatrixView::Of(Upload(values), count, columns);
            std::vector<uint16_t> bits(values.size());
            for (size_t i = 0; i < values.size(); ++i) {
              bits[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
              values[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
            }
            return MatrixView::Of(Upload(bits), DType::kBF16, count, columns);
          };
          const MatrixView keys = upload(k, k_rounded), other = upload(v, v_rounded);
          AppendRows(*stream_, step, heads, table.view(), keys, other);
          std::vector<float> row(static_cast<size_t>(2 * head_dim));
          for (int64_t s = 0; s < 2; ++s) {
            for (int32_t i = 0; i < rows[s]; ++i) {
              for (int64_t h = 0; h < heads; ++h) {
                if (table.list(h) < 0) continue;
                const int64_t first = sequences[static_cast<size_t>(s)].first_row;
                const int64_t at = (first + i) * columns + h * head_dim;
                std::copy_n(k.data() + at, head_dim, row.data());
                std::copy_n(v.data() + at, head_dim, row.data() + head_dim);
                ConvertRow(f32, reinterpret_cast<const std::byte*>(row.data()), format,
                           table.Row(s, h, table.RowOf(past[s] + i)));
              }
            }
          }
          ExpectTable(table);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// All formats; those with scales also with separate scales.
std::vector<RowFormat> Formats(int64_t head_dim) {
  std::vector<RowFormat> formats;
  for (const RowEncoding encoding : kEncodings) {
    if (!Exists(encoding, head_dim)) continue;
    formats.push_back({encoding, head_dim});
    if (!formats.back().has_scales()) continue;
    formats.push_back({encoding, head_dim, /*scales_apart=*/true});
  }
  return formats;
}

// The same format with the scales inside the rows.
RowFormat Whole(const RowFormat& format) { return {format.encoding, format.head_dim}; }

// Rows of a table, and of the table of their scales if those are separate.
class RowsOf {
 public:
  RowsOf(DeviceTable& table, DeviceTable& scales) : table_(table), scales_(scales) {}

  std::vector<std::byte> Read(int64_t sequence, int64_t head, int64_t row) {
    const RowFormat& format = table_.view().format;
    const std::byte* bytes = table_.Row(sequence, head, row);
    std::vector<std::byte> whole(Whole(format).row_bytes());
    if (format.scales_apart) {
      JoinScales(Whole(format), bytes, *Scales(sequence, head, row), whole.data());
    } else {
      std::copy_n(bytes, whole.size(), whole.begin());
    }
    return whole;
  }
  void Write(int64_t sequence, int64_t head, int64_t row, const std::vector<std::byte>& whole) {
    const RowFormat& format = table_.view().format;
    std::byte* bytes = table_.Row(sequence, head, row);
    if (format.scales_apart) {
      *Scales(sequence, head, row) = SplitScales(Whole(format), whole.data(), bytes);
    } else {
      std::copy(whole.begin(), whole.end(), bytes);
    }
  }

 private:
  RowScales* Scales(int64_t sequence, int64_t head, int64_t row) {
    return reinterpret_cast<RowScales*>(scales_.Row(sequence, head, row));
  }
  DeviceTable& table_;
  DeviceTable& scales_;
};

TEST_F(CudaRows, CopyMatchesTheCpuBetweenAllFormats) {
  for (int64_t head_dim : {6, 64, 80, 512}) {
    for (const RowFormat& from_format : Formats(head_dim)) {
      for (const RowFormat& to_format : Formats(head_dim)) {
        for (RowRange::Kind kind :
             {RowRange::kPast, RowRange::kLeaving, RowRange::kRing, RowRange::kNew}) {
          // A step has one table of scales, and rows of one encoding are copied as they are.
          const bool any_apart = from_format.scales_apart || to_format.scales_apart;
          if (from_format.scales_apart && to_format.scales_apart) continue;
          if (any_apart && from_format.encoding == to_format.encoding) continue;
          Random random(static_cast<uint64_t>(head_dim + kind));
          const auto sms = static_cast<int32_t>(random.Integer(0, 1) * random.Integer(1, 3));
          SCOPED_TRACE(std::string(Name(from_format.encoding)) +
                       (from_format.scales_apart ? ", scales apart, to " : " to ") +
                       std::string(Name(to_format.encoding)) +
                       (to_format.scales_apart ? ", scales apart" : "") + ", head_dim " +
                       std::to_string(head_dim) + ", range " + std::to_string(kind) + ", SMs " +
                       std::to_string(sms));
          constexpr int64_t kHeads = 3;
          constexpr int32_t kScalesRows = 23;
          DeviceTable from(random, kSlots, from_format, 11, {2, 1, -1}, 3, 20);
          DeviceTable to(random, kStore, to_format, 16, {0, -1, 1}, 3, 14);
          // Two floats per row.
          DeviceTable scales(random, kScales, {RowEncoding::kF32, 1}, kScalesRows,
                             from_format.scales_apart ? std::vector<int32_t>{2, 1, -1}
                                                      : std::vector<int32_t>{0, -1, 1},
                             3, 10);
          static_assert(sizeof(RowScales) == 2 * sizeof(float));
          from.view().scales_page_rows = to.view().scales_page_rows = kScalesRows;
          if (kind == RowRange::kRing) {
            from.view().sink = 4;
            from.view().ring = 50;
          }
          RowsOf from_rows(from, scales), to_rows(to, scales);
          const RowRange range{kind, 10};
          std::vector<StepSequence> sequences(3);
          const int32_t past[] = {0, 200, 33}, rows[] = {9, 1, 30}, stored[] = {0, 170, 33};
          const auto tokens = [&](size_t s) -> std::pair<int32_t, int32_t> {
            if (kind == RowRange::kPast) return {0, past[s]};
            if (kind == RowRange::kNew) return {past[s], past[s] + rows[s]};
            return {stored[s], kind == RowRange::kLeaving ? past[s] + rows[s] - 10 : past[s]};
          };
          std::vector<std::byte> row(Whole(from_format).row_bytes());
          for (size_t s = 0; s < 3; ++s) {
            sequences[s].past = past[s];
            sequences[s].rows = rows[s];
            sequences[s].stored = stored[s];
            const auto [begin, end] = tokens(s);
            const auto sequence = static_cast<int64_t>(s);
            for (int32_t t = begin; t < end; ++t) {
              FillAny(random, Whole(from_format), row.data());
              from_rows.Write(sequence, 0, from.RowOf(t), row);
            }
          }
          Place(from);
          Place(to);
          Place(scales);
          const StepView step = Step(sequences, {&from, &to, &scales});
          CopyRows(*stream_, step, kHeads, from.view(), to.view(), range, sms);
          for (int64_t s = 0; s < 3; ++s) {
            const auto [begin, end] = tokens(static_cast<size_t>(s));
            for (int32_t t = begin; t < end; ++t) {
              std::vector<std::byte> want(Whole(to_format).row_bytes());
              ConvertRow(Whole(from_format), from_rows.Read(s, 0, from.RowOf(t)).data(),
                         Whole(to_format), want.data());
              to_rows.Write(s, 0, t, want);
            }
          }
          ExpectTable(to);
          ExpectTable(scales);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Values that no scale can represent.
TEST_F(CudaRows, QuantizesWhatIsNotOrdinary) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kDim = 16;
  for (RowEncoding encoding : {RowEncoding::kFp8, RowEncoding::kInt8, RowEncoding::kInt4}) {
    for (float odd : {inf, -inf, nan, 3e38f, 1e-44f, 1e-40f}) {
      // NaNs in 16 bits may differ in irrelevant bits.
      if (encoding == RowEncoding::kInt4 && std::isnan(odd)) continue;
      Random random(3);
      const RowFormat format{encoding, kDim}, f32{RowEncoding::kF32, kDim};
      DeviceTable table(random, kStore, format, 4, {0}, 1, 1);
      Place(table);
      StepSequence sequence;
      sequence.rows = 1;
      const StepView step = Step({sequence}, {&table});
      std::vector<float> row(2 * kDim, 1e-44f);
      row[5] = odd;
      row[kDim] = 1;
      AppendRows(
          *stream_, step, 1, table.view(),
          MatrixView::Of(Upload(std::vector<float>(row.begin(), row.begin() + kDim)), 1, kDim),
          MatrixView::Of(Upload(std::vector<float>(row.begin() + kDim, row.end())), 1, kDim));
      ConvertRow(f32, reinterpret_cast<const std::byte*>(row.data()), format, table.Row(0, 0, 0));
      SCOPED_TRACE(std::string(Name(encoding)) + " of " + std::to_string(odd));
      ExpectTable(table);
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
