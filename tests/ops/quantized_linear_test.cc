// Products with weights in blocks of every format, on the CPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "ops/block_matrix.h"
#include "ops/common/scratch.h"
#include "ops/dense/embedding.h"
#include "ops/linear/linear.h"
#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

// x as the integer kernels read it, and half of a step of each value.
struct RoundedX {
  std::vector<double> values, half_steps;
};
RoundedX RoundX(const Matrix& x, int64_t row) {
  constexpr int64_t kSlice = 256;  // values that are rounded together
  const int64_t depth = x.view().cols;
  RoundedX rounded;
  for (int64_t i = 0; i < depth; i += kSlice) {
    const int64_t end = std::min(i + kSlice, depth);
    float largest = 0;
    for (int64_t j = i; j < end; ++j) {
      largest = std::max(largest, static_cast<float>(std::abs(x.At(row, j))));
    }
    const float scale = largest / 16383, inverse = largest > 0 ? 16383 / largest : 0;
    for (int64_t j = i; j < end; ++j) {
      const float level = std::nearbyint(static_cast<float>(x.At(row, j)) * inverse);
      rounded.values.push_back(static_cast<double>(level) * scale);
      rounded.half_steps.push_back(0.5001 * scale);
    }
  }
  return rounded;
}

struct Options {
  bool bias = false, add = false;
  int64_t padding = 0;
};

// Compares y with sums in double: of x rounded as the contract says up to f32's rounding, and of x
// itself up to half a step of every value, and to a ten thousandth of the root of the terms'
// squares.
void ExpectProducts(const BlockMatrix& weight, const Matrix& x, const std::vector<float>& bias,
                    const Matrix& before, const Matrix& y, const Options& options) {
  const int64_t depth = x.view().cols, rows = x.view().rows;
  const bool integers = ActiveCpuIsa() >= CpuIsa::kAvx2;
  double squared_error = 0, squares = 0;
  int64_t wrong = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const RoundedX rounded = RoundX(x, t);
    for (int64_t o = 0; o < y.view().cols; ++o) {
      const float* w = weight.Row(o);
      double exact = 0, read = 0, steps = 0, magnitude = 0, largest = 0, terms = 0;
      for (int64_t i = 0; i < depth; ++i) {
        const auto at = static_cast<size_t>(i);
        exact += x.At(t, i) * w[i];
        read += rounded.values[at] * w[i];
        steps += rounded.half_steps[at] * std::abs(w[i]);
        magnitude += std::abs(x.At(t, i));
        terms += x.At(t, i) * x.At(t, i) * w[i] * w[i];
        largest = std::max(largest, std::abs(static_cast<double>(w[i])));
      }
      double rest = options.bias ? bias[static_cast<size_t>(o)] : 0;
      if (options.add) rest += before.At(t, o);
      const double got = y.At(t, o) - rest;
      // Levels start at 0, so that they are up to twice a value, and minima as large.
      const double root = std::sqrt(static_cast<double>(depth));
      const double f32 = std::ldexp(1.0, -24) * (8 * root + 16) *
                             (4 * largest * magnitude / root + std::abs(exact)) +
                         std::ldexp(4.0, -24) * std::abs(rest);
      squared_error += (got - exact) * (got - exact);
      squares += terms;
      const double read_error = std::abs(got - (integers ? read : exact));
      if ((!(read_error <= f32) || !(std::abs(got - exact) <= steps + f32)) && ++wrong <= 3) {
        ADD_FAILURE() << "[" << t << ", " << o << "]: got " << got << ", want " << read
                      << " (x: " << exact << "), tolerance " << f32 << " (" << steps << ")";
      }
    }
    for (int64_t o = y.view().cols; o < y.view().stride; ++o) {
      EXPECT_TRUE(std::isnan(y.view().Row<float>(t)[o])) << "padding written";
    }
  }
  EXPECT_EQ(wrong, 0);
  // Rounding is off by 0.3 steps on average, 0.003% of x; f32's by more where minima cancel levels.
  EXPECT_LT(std::sqrt(squared_error / squares), 2e-4);
}

Matrix Product(Stream& stream, const MatrixView& x, const BlockMatrix& weight) {
  Matrix y(DType::kF32, x.rows, weight.view().rows);
  Linear(stream, x, weight.view(), nullptr, y.view());
  return y;
}

void Check(Random& random, Stream& stream, const BlockFormat& format, int64_t rows, int64_t out,
           int64_t depth, const Options& options) {
  SCOPED_TRACE(fmt::format("{}: rows {}, out {}, depth {}, bias {}, add {}, padding {}",
                           format.name, rows, out, depth, options.bias, options.add,
                           options.padding));
  const BlockMatrix weight(random, format, out, depth);
  const Matrix x = Matrix::Normal(random, DType::kF32, rows, depth, options.padding);
  std::vector<float> bias(static_cast<size_t>(out));
  for (float& b : bias) b = random.Normal(10);
  const Matrix before = Matrix::Normal(random, DType::kF32, rows, out, options.padding);
  Matrix y = before;
  Linear(stream, x.view(), weight.view(), options.bias ? bias.data() : nullptr, y.view(),
         options.add ? Epilogue::kAdd : Epilogue::kStore);
  ExpectProducts(weight, x, bias, before, y, options);
}

TEST(QuantizedLinear, EveryFormatRowCountAndDepth) {
  Random random(11);
  ForEachIsa(3, [&](Stream& stream) {
    for (const BlockFormat* format : Formats()) {
      // One block, less than a slice of 256, slices and a rest.
      for (const int64_t blocks : {1, 3, 9}) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
          const Options options{.bias = rows % 2 == 0, .add = rows % 3 == 0, .padding = rows % 5};
          Check(random, stream, *format, rows, rows == 1 ? 37 : 5, blocks * format->values,
                options);
        }
      }
    }
  });
}

TEST(QuantizedLinear, DeepAndWide) {
  Random random(12);
  ForEachIsa(2, [&](Stream& stream) {
    for (const BlockFormat* format : Formats()) {
      Check(random, stream, *format, 1, 131, 2048, {});
      Check(random, stream, *format, 3, 3, 8192, {});
      Check(random, stream, *format, 33, 35, 1280, {.bias = true, .add = true, .padding = 3});
    }
    // Pieces of work of many outputs, whose rows do not divide into tiles.
    Check(random, stream, *FindBlockFormat("Q5_K"), 41, 1030, 512, {});
    // More rows than are packed at one time.
    Check(random, stream, *FindBlockFormat("Q4_K"), 520, 33, 256, {.bias = true});
  });
}

// Weights of one value, which some formats have in their minimum or offset alone.
TEST(QuantizedLinear, MinimaCount) {
  constexpr int64_t kDepth = 512, kOut = 3;
  for (const BlockFormat* format : Formats()) {
    if (format->from_float == nullptr) continue;
    const BlockMatrix weight(*format, std::vector<float>(kDepth * kOut, -0.75f), kDepth);
    for (const int64_t rows : {1, 7, 12}) {
      Matrix x(DType::kF32, rows, kDepth);
      for (int64_t t = 0; t < rows; ++t) std::fill_n(x.Row(t), kDepth, 1.0f);
      ForEachIsa(1, [&](Stream& stream) {
        const Matrix y = Product(stream, x.view(), weight);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t o = 0; o < kOut; ++o) {
            EXPECT_NEAR(y.At(t, o), -0.75 * kDepth, 0.01 * kDepth) << format->name;
          }
        }
      });
    }
  }
}

TEST(QuantizedLinear, LevelsAndXAtTheirLimits) {
  constexpr int64_t kDepth = 1024, kOut = 4;
  Random random(13);
  for (const BlockFormat* format : Formats()) {
    // All bits set, or none: the largest sums that 16 bits must hold.
    for (const int fill : {0xff, 0x7f, 0x80, 0}) {
      BlockMatrix weight(random, *format, kOut, kDepth);
      auto* bytes = static_cast<std::byte*>(weight.view().data);
      const int64_t row_bytes = weight.view().RowBytes();
      for (int64_t at = 0; at < kOut * row_bytes; at += format->bytes) {
        const bool first_byte_scales = format->name == "MXFP4";
        const std::vector<std::byte> old(bytes + at, bytes + at + format->bytes);
        std::memset(bytes + at, fill, static_cast<size_t>(format->bytes));
        if (first_byte_scales) bytes[at] = old[0];
        for (const size_t place : HalvesOf(format->name)) {
          std::memcpy(bytes + at + place, &old[place], 2);
        }
      }
      std::vector<float> values(static_cast<size_t>(kOut * kDepth));
      format->to_float(bytes, kOut * kDepth / format->values, values.data());
      for (const int64_t rows : {1, 9}) {
        Matrix x(DType::kF32, rows, kDepth);
        for (int64_t t = 0; t < rows; ++t) {
          std::fill_n(x.Row(t), kDepth, t % 2 == 0 ? 127.0f : -127.0f);
        }
        ForEachIsa(1, [&](Stream& stream) {
          const Matrix y = Product(stream, x.view(), weight);
          for (int64_t o = 0; o < kOut; ++o) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < kDepth; ++i) {
              const double term = values[static_cast<size_t>(o * kDepth + i)] * 127.0;
              sum += term;
              magnitude += std::abs(term);
            }
            for (int64_t t = 0; t < rows; ++t) {
              EXPECT_NEAR(y.At(t, o), t % 2 == 0 ? sum : -sum, 1e-4 * magnitude)
                  << format->name << ", bytes " << fill;
            }
          }
        });
      }
    }
  }
}

TEST(QuantizedLinear, BitsDependNeitherOnThreadsNorOnOtherRows) {
  constexpr int64_t kOut = 67, kRows = 33;
  Random random(14);
  for (const BlockFormat* format : Formats()) {
    const BlockMatrix weight(random, *format, kOut, 1024 + format->values);
    const Matrix x = Matrix::Normal(random, DType::kF32, kRows, weight.view().cols, 3);
    ForEachIsa([&] {
      CpuDevice one(1), three(3);
      auto stream = one.CreateStream(), other = three.CreateStream();
      const auto same = [&](int64_t row, int64_t batch, const Matrix& want, int64_t want_row) {
        for (Stream* s : {stream.get(), other.get()}) {
          const Matrix y = Product(*s, x.view().Rows(row - batch + 1, batch), weight);
          EXPECT_EQ(std::memcmp(y.view().Row<float>(batch - 1), want.view().Row<float>(want_row),
                                kOut * sizeof(float)),
                    0)
              << format->name << ", row " << row << " last of " << batch;
        }
      };
      const int64_t invariant = LinearBatchInvariantRows(DeviceType::kCpu, DType::kBlocks);
      ASSERT_GE(invariant, 2);
      const Matrix alone = Product(*stream, x.view().Rows(20, 1), weight);
      for (int64_t batch = 1; batch <= invariant; ++batch) same(20, batch, alone, 0);
      // Beyond the limit, the other kernel.
      const Matrix all = Product(*stream, x.view(), weight);
      for (const int64_t batch : {invariant + 1, invariant + 4, int64_t{17}}) {
        same(20, batch, all, 20);
      }
    });
  }
}

TEST(QuantizedLinear, PartsOfSeveralFormatsGiveTheSameBitsAsAlone) {
  constexpr int64_t kDepth = 768;
  Random random(15);
  std::vector<BlockMatrix> weights;
  for (const auto& [name, out] : {std::pair<std::string_view, int64_t>{"Q4_K", 70},
                                  {"Q6_K", 33},
                                  {"Q8_0", 1},
                                  {"Q2_K", 40}}) {
    weights.emplace_back(random, *FindBlockFormat(name), out, kDepth);
  }
  const Matrix plain = Matrix::Normal(random, DType::kBF16, 35, kDepth);
  std::vector<MatrixView> views;
  for (const BlockMatrix& weight : weights) views.push_back(weight.view());
  views.insert(views.begin() + 2, plain.view());
  for (const int64_t rows : {1, 4, 7, 40}) {
    const Matrix x = Matrix::Normal(random, DType::kF32, rows, kDepth);
    std::vector<Matrix> alone, together, biases;
    for (const MatrixView& view : views) {
      alone.push_back(Matrix::Normal(random, DType::kF32, rows, view.rows, 2));
      together.push_back(alone.back());
      biases.push_back(Matrix::Normal(random, DType::kF32, 1, view.rows));
    }
    ForEachIsa(3, [&](Stream& stream) {
      std::vector<LinearPart> parts;
      for (size_t i = 0; i < views.size(); ++i) {
        const float* bias = i == 1 ? nullptr : biases[i].view().Row<float>(0);
        parts.push_back({.weight = views[i], .bias = bias, .y = together[i].view()});
        Linear(stream, x.view(), views[i], bias, alone[i].view(), Epilogue::kAdd);
      }
      Linear(stream, x.view(), parts, Epilogue::kAdd);
      for (size_t i = 0; i < views.size(); ++i) {
        EXPECT_TRUE(SameBits(alone[i], together[i])) << rows << " rows, part " << i;
      }
    });
  }
}

TEST(QuantizedLinear, AnXThatIsNotFiniteShows) {
  Random random(16);
  const BlockMatrix weight(random, *FindBlockFormat("Q4_K"), 5, 512);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t rows : {2, 9}) {
      Matrix x = Matrix::Normal(random, DType::kF32, rows, 512);
      x.Set(1, 300, value);
      ForEachIsa(1, [&](Stream& stream) {
        const Matrix y = Product(stream, x.view(), weight);
        for (int64_t o = 0; o < 5; ++o) {
          EXPECT_TRUE(std::isfinite(y.At(0, o)));
          EXPECT_FALSE(std::isfinite(y.At(1, o)));
        }
      });
    }
  }
}

// On a separate thread: its scratch is new, and its pool's.
TEST(QuantizedLinear, ScratchStaysWithinWhatPlansCount) {
  for (const int64_t depth : {256, 1792}) {
    for (const int64_t rows : {1, 4, 30, 700}) {
      std::thread([&] {
        Random random(17);
        const Matrix x = Matrix::Normal(random, DType::kF32, rows, depth);
        const BlockMatrix weight(random, *FindBlockFormat("Q6_K"), 70, depth);
        ForEachIsa(3, [&](Stream& stream) {
          const int64_t before = cpu::ScratchBytesHeld().load();
          for (const int64_t count : {int64_t{1}, rows / 2 + 1, rows}) {
            Product(stream, x.view().Rows(0, count), weight);
          }
          const int64_t grown = cpu::ScratchBytesHeld().load() - before;
          EXPECT_LE(grown, static_cast<int64_t>(LinearScratchBytes(rows, depth, 3)))
              << rows << " rows of " << depth;
        });
      }).join();
    }
  }
}

TEST(QuantizedEmbedding, GivesTheValuesOfEveryFormat) {
  Random random(18);
  for (const BlockFormat* format : Formats()) {
    const int64_t cols = 3 * format->values;
    const BlockMatrix table(random, *format, 20, cols);
    const std::vector<int32_t> ids = {19, 0, 7, 7};
    const Matrix before = Matrix::Normal(random, DType::kF32, 4, cols, 2);
    ForEachIsa(2, [&](Stream& stream) {
      Matrix stored = before, added = before;
      Embedding(stream, table.view(), ids, stored.view());
      Embedding(stream, table.view(), ids, added.view(), Epilogue::kAdd);
      for (int64_t t = 0; t < 4; ++t) {
        const float* want = table.Row(ids[static_cast<size_t>(t)]);
        for (int64_t i = 0; i < cols; ++i) {
          EXPECT_EQ(stored.Row(t)[i], want[i]) << format->name;
          EXPECT_EQ(added.Row(t)[i], before.view().Row<float>(t)[i] + want[i]) << format->name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace litecache::ops
