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

  static DeltaStates StatesOf(const DeltaStates& all, const std::vector<size_t>& some) {
    DeltaStates states;
    for (size_t i : some) states.push_back(all[i]);
    return states;
  }
  static bool SameRows(const Matrix& a, const Matrix& b, int64_t begin, int64_t count) {
    for (int64_t row = begin; row < begin + count; ++row) {
      if (std::memcmp(a.view().Row<float>(row), b.view().Row<float>(row),
                      static_cast<size_t>(a.view().cols) * sizeof(float)) != 0) {
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

// The same bits however a prompt is divided into steps.
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

// A sequence's bits are the same alone and with others.
TEST_F(GatedDeltaContract, SequencesAreIndependent) {
  for (const auto& [sequences, rows] : {std::pair{kMixed, kMixedRows}, {kSingle, kSingleRows}}) {
    const DeltaCase a(random_, kOdd, rows, 0);
    const DeltaStates states = RandomStates(random_, kOdd, sequences);
    ForEachVariant([&] {
      const Results want = Run(a, sequences, states);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const Results got = Run(a, {sequences[i]}, StatesOf(states, {i}));
        EXPECT_TRUE(SameRows(got.out, want.out, sequences[i].first_row, sequences[i].rows))
            << "sequence " << i;
        EXPECT_TRUE(SameState(got.states[0], want.states[i])) << "sequence " << i;
      }
    });
  }
}

}  // namespace
}  // namespace litecache::ops
