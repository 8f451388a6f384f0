#include "ops/gated_delta_testing.h"

namespace litecache::ops {
namespace {

// key_heads, value_heads, key_dim, value_dim, taps, tiled.
constexpr GatedDeltaShape kOdd{2, 4, 24, 40, 4}, kTiny{1, 1, 1, 1, 1}, kNarrow{1, 3, 7, 130, 2},
    kModel{2, 6, 128, 128, 4}, kWide{1, 2, 200, 256, 8}, kHalf{3, 3, 64, 72, 3},
    kTiled{3, 6, 40, 48, 4, true}, kWideTiled{2, 8, 136, 132, 2, true};

// Whole prompts, prompts' later parts and single tokens, in no order, with rows between them that
// are of no sequence.
const std::vector<DeltaRows> kMixed = {{60, 40, 0}, {1, 1, 9},  {4, 2, 0},
                                       {6, 35, 70}, {41, 1, 0}, {45, 3, 1}};
constexpr int64_t kMixedRows = 101;
const std::vector<DeltaRows> kSingle = {{3, 1, 5}, {0, 1, 0}, {1, 1, 1}, {5, 1, 1000}};
constexpr int64_t kSingleRows = 7;
// Parts that a GPU updates by chunks of 64 tokens, and among them some that it does not.
const std::vector<DeltaRows> kLong = {{3, 130, 0},    {135, 1, 9},  {136, 64, 5},
                                      {202, 300, 70}, {503, 20, 3}, {530, 65, 0}};
constexpr int64_t kLongRows = 597;
// Shapes for which it does, with one, three and eight value heads for a key head.
constexpr GatedDeltaShape kEqual{4, 4, 128, 128, 4}, kGroup{1, 8, 128, 128, 2},
    kModelTiled{2, 6, 128, 128, 4, true};

class GatedDeltaContract : public GatedDeltaTest {
 protected:
  void Check(const DeltaCase& a, const std::vector<DeltaRows>& sequences, DType out_dtype,
             int64_t padding) {
    const GatedDeltaShape& shape = a.shape;
    SCOPED_TRACE(fmt::format("{} key heads of {}, {} value heads of {}, {} taps{}, {}, padding {}",
                             shape.key_heads, shape.key_dim, shape.value_heads, shape.value_dim,
                             shape.taps, shape.tiled ? ", tiled" : "", Name(out_dtype), padding));
    const DeltaStates states = RandomStates(random_, shape, sequences);
    const DeltaReference want = Refer(a, sequences, states, kNormEps, Rounding(out_dtype));
    ForEachVariant([&] {
      const Results got = Run(a, sequences, states, out_dtype, padding);
      const MatrixView& out = got.out.view();
      int64_t wrong = 0;
      const auto compare = [&](const char* name, size_t index, size_t i, double value,
                               double expected, double tolerance) {
        if (std::isnan(expected) ? std::isnan(value) : std::abs(value - expected) <= tolerance) {
          return;
        }
        if (++wrong <= 5) {
          ADD_FAILURE() << name << " " << index << ", element " << i << ": got " << value
                        << ", want " << expected << ", tolerance " << tolerance;
        }
      };
      for (int64_t row = 0; row < out.rows; ++row) {
        for (int64_t c = 0; c < out.stride; ++c) {
          const auto cell = static_cast<size_t>(row * out.cols + c);
          const bool inside = c < out.cols;
          compare("row", static_cast<size_t>(row), static_cast<size_t>(c), got.out.At(row, c),
                  inside ? want.out[cell] : NAN, inside ? want.out_tolerance[cell] : 0);
        }
      }
      for (size_t s = 0; s < sequences.size(); ++s) {
        for (size_t i = 0; i < want.states[s].size(); ++i) {
          compare("state", s, i, got.states[s][i], want.states[s][i], want.tolerance[s][i]);
        }
      }
      EXPECT_EQ(wrong, 0);
    });
  }

  // The same for results in bf16, where products may be of f16: compares by norms, of each head of
  // each sequence, and more loosely of each row and each column of a state. Emulated, results are
  // off by half of these limits at most; with products of bf16, states are off by more.
  void CheckNorms(const DeltaCase& a, const std::vector<DeltaRows>& sequences, int64_t padding) {
    const GatedDeltaShape& shape = a.shape;
    SCOPED_TRACE(fmt::format("{} key heads, {} value heads", shape.key_heads, shape.value_heads));
    const DeltaStates states = RandomStates(random_, shape, sequences);
    const DeltaReference want = Refer(a, sequences, states, kNormEps, Rounding(DType::kBF16));
    ForEachVariant([&] {
      const Results got = Run(a, sequences, states, DType::kBF16, padding);
      const MatrixView& out = got.out.view();
      for (int64_t row = 0; row < out.rows; ++row) {
        for (int64_t c = 0; c < out.stride; ++c) {
          const bool none =
              c >= out.cols || std::isnan(want.out[static_cast<size_t>(row * out.cols + c)]);
          ASSERT_EQ(std::isnan(got.out.At(row, c)), none) << "row " << row << ", column " << c;
        }
      }
      for (size_t s = 0; s < sequences.size(); ++s) {
        for (int64_t head = 0; head < shape.value_heads; ++head) {
          SCOPED_TRACE(fmt::format("sequence {}, head {}", s, head));
          const int64_t first = sequences[s].first_row, dim = shape.value_dim;
          ExpectClose(sequences[s].rows, dim, 4e-3, 1e-2, [&](int64_t t, int64_t c) {
            const int64_t column = head * dim + c;
            return std::pair(got.out.At(first + t, column),
                             want.out[static_cast<size_t>((first + t) * shape.width() + column)]);
          });
          ExpectClose(dim, shape.key_dim, 2e-3, 5e-3, [&](int64_t c, int64_t i) {
            const auto at =
                static_cast<size_t>(shape.history_floats() + (head * shape.key_dim + i) * dim + c);
            return std::pair<double, double>(got.states[s][at], want.states[s][at]);
          });
        }
        for (size_t i = 0; i < static_cast<size_t>(shape.history_floats()); ++i) {
          ASSERT_EQ(got.states[s][i], want.states[s][i]) << "history " << s << ", element " << i;
        }
      }
    });
  }
  // at(i, j): what element j of vector i is, and should be. The norm of all vectors may be off by
  // `all` of what it should be, and that of each by `each` of its own and the vectors' mean.
  template <typename At>
  static void ExpectClose(int64_t vectors, int64_t n, double all, double each, const At& at) {
    std::vector<double> error(static_cast<size_t>(vectors)), norm(static_cast<size_t>(vectors));
    for (int64_t i = 0; i < vectors; ++i) {
      std::vector<double> value, difference;
      for (int64_t j = 0; j < n; ++j) {
        const auto [got, want] = at(i, j);
        value.push_back(want);
        difference.push_back(got - want);
      }
      error[static_cast<size_t>(i)] = reference::Norm(difference);
      norm[static_cast<size_t>(i)] = reference::Norm(value);
    }
    // Numbers that are as nothing beside the inputs: what a decay of 0 leaves, and f16's least.
    const double nothing = 0x1p-20 * std::sqrt(static_cast<double>(n));
    const double whole = reference::Norm(norm);
    const double mean = whole / std::sqrt(static_cast<double>(vectors));
    EXPECT_LE(reference::Norm(error),
              all * whole + nothing * std::sqrt(static_cast<double>(vectors)));
    int64_t wrong = 0;
    for (size_t i = 0; i < error.size(); ++i) {
      const double tolerance = each * (norm[i] + mean) + nothing;
      if (!(error[i] <= tolerance) && ++wrong <= 3) {
        ADD_FAILURE() << "vector " << i << " of " << vectors << ": off by " << error[i]
                      << ", tolerance " << tolerance;
      }
    }
    EXPECT_EQ(wrong, 0);
  }

  bool HasBf16() const {
    const std::vector<DType> dtypes = target_->Activations();
    return std::find(dtypes.begin(), dtypes.end(), DType::kBF16) != dtypes.end();
  }

  static DeltaStates StatesOf(const DeltaStates& all, const std::vector<size_t>& some) {
    DeltaStates states;
    for (size_t i : some) states.push_back(all[i]);
    return states;
  }
  static bool SameRows(const Matrix& a, const Matrix& b, int64_t begin, int64_t count) {
    const auto size = SizeOf(a.view().dtype);
    const auto row = [&](const Matrix& m, int64_t i) {
      return static_cast<const std::byte*>(m.view().data) +
             static_cast<size_t>(i * m.view().stride) * size;
    };
    for (int64_t i = begin; i < begin + count; ++i) {
      if (std::memcmp(row(a, i), row(b, i), static_cast<size_t>(a.view().cols) * size) != 0) {
        return false;
      }
    }
    return true;
  }
  static bool SameState(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

TEST_F(GatedDeltaContract, MixedSequences) {
  for (const GatedDeltaShape& shape :
       {kOdd, kTiny, kNarrow, kModel, kWide, kHalf, kTiled, kWideTiled}) {
    for (const DType dtype : target_->Activations()) {
      const int64_t padding = dtype == DType::kF32 ? 5 : 0;
      Check(DeltaCase(random_, shape, kMixedRows, padding), kMixed, dtype, padding);
    }
  }
}

TEST_F(GatedDeltaContract, SingleTokens) {
  for (const GatedDeltaShape& shape :
       {kOdd, kTiny, kNarrow, kModel, kWide, kHalf, kTiled, kWideTiled}) {
    for (const DType dtype : target_->Activations()) {
      const int64_t padding = dtype == DType::kF32 ? 0 : 5;
      Check(DeltaCase(random_, shape, kSingleRows, padding), kSingle, dtype, padding);
    }
  }
}

TEST_F(GatedDeltaContract, LongPrompt) {
  const std::vector<DeltaRows> sequences = {{0, 500, 0}};
  Check(DeltaCase(random_, {1, 2, 48, 32, 4}, 500, 0), sequences, DType::kF32, 0);
}

// Heads that keep or forget everything, and tokens that correct nothing; keys and values of zero.
TEST_F(GatedDeltaContract, ExtremeInputs) {
  DeltaCase a(random_, kOdd, kMixedRows, 0);
  for (int64_t row = 0; row < kMixedRows; ++row) {
    for (int64_t head = 0; head < kOdd.value_heads; ++head) {
      const auto extreme = [&] { return static_cast<float>(random_.Integer(-1, 1) * 100); };
      a.rate.Set(row, head, extreme());
      a.step.Set(row, head, extreme());
    }
    for (int64_t c = 0; row % 3 == 0 && c < kOdd.channels(); ++c) {
      a.qkv.Set(row, c, random_.Integer(0, 1) == 0 ? 0.0f : 100.0f);
    }
    for (int64_t c = 0; c < kOdd.width(); c += 3) a.gate.Set(row, c, row % 2 == 0 ? 300 : -300);
  }
  for (int64_t row = 6; row < 20; ++row) {
    for (int64_t c = 0; c < kOdd.channels(); ++c) a.qkv.Set(row, c, 0);
  }
  Check(a, kMixed, DType::kF32, 0);
}

// The same bits however a prompt is divided into steps, in f32.
TEST_F(GatedDeltaContract, DivisionsIntoSteps) {
  constexpr int64_t kRows = 83;
  for (const GatedDeltaShape& shape : {kOdd, kModel, kWide, kNarrow, kTiled}) {
    SCOPED_TRACE(fmt::format("dimensions {} and {}", shape.key_dim, shape.value_dim));
    const DeltaCase a(random_, shape, kRows, 0);
    const std::vector<DeltaRows> whole = {{0, kRows, 0}};
    const DeltaStates fresh = RandomStates(random_, shape, whole);
    ForEachVariant([&] {
      const Results want = Run(a, whole, fresh);
      for (const int64_t most : {1, 2, 5, 40}) {
        DeltaStates states = fresh;
        for (int64_t past = 0; past < kRows;) {
          const int64_t rows = std::min(kRows - past, most == 1 ? 1 : random_.Integer(1, most));
          Results got = Run(a, {{past, rows, past}}, states);
          ASSERT_TRUE(SameRows(got.out, want.out, past, rows))
              << rows << " rows after " << past << ", steps of up to " << most;
          states = std::move(got.states);
          past += rows;
        }
        EXPECT_TRUE(SameState(states[0], want.states[0])) << "steps of up to " << most;
      }
    });
  }
}

TEST_F(GatedDeltaContract, LongParts) {
  if (!HasBf16()) GTEST_SKIP() << "only f32";
  for (const GatedDeltaShape& shape : {kModel, kEqual, kGroup, kModelTiled}) {
    for (const int64_t padding : {0, 4}) {
      CheckNorms(DeltaCase(random_, shape, kLongRows, padding), kLong, padding);
    }
  }
  // A sequence that has the step to itself; more than a few chunks.
  CheckNorms(DeltaCase(random_, kModel, 700, 0), {{0, 700, 0}}, 0);
  CheckNorms(DeltaCase(random_, kModel, 90, 0), {{5, 81, 400}}, 0);
  // Rows that cannot be read 16 bytes at a time.
  CheckNorms(DeltaCase(random_, kModel, 70, 5), {{2, 67, 1}}, 5);
}

// Heads that keep or forget everything, tokens that correct nothing or all, keys of zero and equal
// ones.
TEST_F(GatedDeltaContract, ExtremeLongParts) {
  if (!HasBf16()) GTEST_SKIP() << "only f32";
  for (const GatedDeltaShape& shape : {kModel, kEqual}) {
    DeltaCase a(random_, shape, kLongRows, 0);
    const int64_t width = 2 * shape.key_heads * shape.key_dim;
    for (int64_t row = 0; row < kLongRows; ++row) {
      for (int64_t head = 0; head < shape.value_heads; ++head) {
        a.rate.Set(row, head, static_cast<float>(random_.Integer(-1, 1) * 100));
        a.step.Set(row, head, static_cast<float>(random_.Integer(-1, 1) * 100));
      }
      for (int64_t c = 0; row % 3 == 0 && c < shape.channels(); ++c) {
        a.qkv.Set(row, c, random_.Integer(0, 1) == 0 ? 0.0f : 3.0f);
      }
    }
    for (const DeltaRows& part : kLong) {
      for (int64_t t = 0; t < part.rows; ++t) {
        const int64_t row = part.first_row + t;
        for (int64_t c = 0; t % 50 < 10 && c < shape.channels(); ++c) a.qkv.Set(row, c, 0);
        for (int64_t c = 0; t % 100 >= 40 && t % 100 < 80 && c < width; ++c) {
          a.qkv.Set(row, c, static_cast<float>(a.qkv.At(row - t % 100 + 39, c)));
        }
      }
    }
    CheckNorms(a, kLong, 0);
  }
}

// A sequence's bits are the same alone and with others.
TEST_F(GatedDeltaContract, SequencesAreIndependent) {
  const auto check = [&](const GatedDeltaShape& shape, const std::vector<DeltaRows>& sequences,
                         int64_t rows, DType dtype) {
    SCOPED_TRACE(fmt::format("{} rows, {}", rows, Name(dtype)));
    const DeltaCase a(random_, shape, rows, 0);
    const DeltaStates states = RandomStates(random_, shape, sequences);
    ForEachVariant([&] {
      const Results want = Run(a, sequences, states, dtype);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const Results got = Run(a, {sequences[i]}, StatesOf(states, {i}), dtype);
        EXPECT_TRUE(SameRows(got.out, want.out, sequences[i].first_row, sequences[i].rows))
            << "sequence " << i;
        EXPECT_TRUE(SameState(got.states[0], want.states[i])) << "sequence " << i;
      }
    });
  };
  check(kOdd, kMixed, kMixedRows, DType::kF32);
  check(kOdd, kSingle, kSingleRows, DType::kF32);
  if (HasBf16()) check(kModel, kLong, kLongRows, DType::kBF16);
}

}  // namespace
}  // namespace litecache::ops
