#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "ops/common/scratch.h"
#include "ops/linear/gemm_onednn_cpu.h"
#include "ops/linear/gemv_cpu.h"
#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

struct Case {
  int64_t tokens, in, out;
  DType dtype;
  bool bias = false;
  Epilogue epilogue = Epilogue::kStore;
  int64_t padding = 0;
};

// |error| of a sum of n products accumulated in f32 is at most about n * 2^-24 * sum |x w|; random
// rounding errors grow with sqrt(n). The check allows 8 sqrt(n) + 16 of those units, with x and w
// rounded according to the contract, so there is no other error.
void ExpectProduct(const Case& c, const Matrix& x, const Matrix& w, const std::vector<float>& bias,
                   const Matrix& before, const Matrix& y) {
  const DType x_dtype = c.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  const double unit = std::ldexp(1.0, -24);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t n = 0; n < c.out; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.in; ++k) {
        const double product = RoundTo(x_dtype, static_cast<float>(x.At(t, k))) * w.At(n, k);
        sum += product;
        magnitude += std::abs(product);
      }
      if (c.bias) sum += bias[static_cast<size_t>(n)];
      if (c.epilogue == Epilogue::kAdd) sum += before.At(t, n);
      const double bound =
          unit * (8 * std::sqrt(c.in) + 16) * (magnitude / std::sqrt(c.in) + std::abs(sum)) + 1e-30;
      ASSERT_NEAR(y.At(t, n), sum, bound)
          << "token " << t << " of " << c.tokens << ", output " << n << " of " << c.out
          << ", depth " << c.in << ", " << Name(c.dtype);
    }
  }
}

void RunCase(const Case& c, int threads) {
  Random random(static_cast<uint64_t>(c.tokens * 31 + c.in * 7 + c.out));
  const Matrix x = Matrix::Normal(random, DType::kF32, c.tokens, c.in, c.padding);
  const Matrix w = Matrix::Normal(random, c.dtype, c.out, c.in, c.padding, 0.1f);
  const Matrix before = Matrix::Normal(random, DType::kF32, c.tokens, c.out, c.padding);
  std::vector<float> bias(static_cast<size_t>(c.out));
  for (float& b : bias) b = random.Normal();
  ForEachIsa(threads, [&](Stream& stream) {
    const Matrix y = before;
    Linear(stream, x.view(), w.view(), c.bias ? bias.data() : nullptr, y.view(), c.epilogue);
    ExpectProduct(c, x, w, bias, before, y);
  });
}

TEST(Linear, OddShapesOfEveryTypeMatchDoublePrecision) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 33, 65, 130}) {
      RunCase({.tokens = tokens, .in = 97, .out = 53, .dtype = dtype}, 2);
    }
    for (int64_t in : {1, 2, 3, 15, 31, 32, 33, 64, 255, 257, 1031}) {
      RunCase({.tokens = 1, .in = in, .out = 19, .dtype = dtype}, 1);
      RunCase({.tokens = 21, .in = in, .out = 19, .dtype = dtype}, 3);
    }
    for (int64_t out : {1, 2, 5, 6, 13, 97, 200}) {
      RunCase({.tokens = 1, .in = 70, .out = out, .dtype = dtype}, 4);
      RunCase({.tokens = 40, .in = 70, .out = out, .dtype = dtype}, 4);
    }
  }
}

TEST(Linear, MoreTokensThanABlockHolds) {
  RunCase({.tokens = 1030, .in = 40, .out = 7, .dtype = DType::kBF16}, 2);
  RunCase({.tokens = 300, .in = 700, .out = 9, .dtype = DType::kF32}, 2);
}

// The path for CPUs with AMX; oneDNN runs it with the instructions of this CPU.
TEST(Linear, OneDnnMatchesDoublePrecision) {
  if (ActiveCpuIsa() < CpuIsa::kAvx512) GTEST_SKIP() << "oneDNN needs AVX-512 for bf16";
  for (Case c : {Case{.tokens = 33, .in = 97, .out = 300, .dtype = DType::kBF16},
                 Case{.tokens = 70, .in = 256, .out = 513, .dtype = DType::kBF16, .padding = 3},
                 Case{.tokens = 1100, .in = 32, .out = 5, .dtype = DType::kBF16}}) {
    for (bool bias : {false, true}) {
      for (Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
        c.bias = bias;
        c.epilogue = epilogue;
        Random random(77);
        const Matrix x = Matrix::Normal(random, DType::kF32, c.tokens, c.in, c.padding);
        const Matrix w = Matrix::Normal(random, c.dtype, c.out, c.in, c.padding, 0.1f);
        const Matrix before = Matrix::Normal(random, DType::kF32, c.tokens, c.out, c.padding);
        std::vector<float> biases(static_cast<size_t>(c.out));
        for (float& b : biases) b = random.Normal();
        const Matrix y = before;
        ThreadPool pool(3);
        cpu::GemmOneDnn(pool, x.view(), w.view(), bias ? biases.data() : nullptr, y.view(),
                        epilogue);
        ExpectProduct(c, x, w, biases, before, y);
      }
    }
  }
}

TEST(Linear, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(1);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int64_t tokens : {1, 3, 12, 200}) {
      const Matrix x = Matrix::Normal(random, DType::kF32, tokens, 515);
      const Matrix w = Matrix::Normal(random, dtype, 333, 515);
      std::vector<Matrix> results;
      for (int threads : {1, 2, 3, 4}) {
        CpuDevice device(threads);
        auto stream = device.CreateStream();
        results.emplace_back(DType::kF32, tokens, 333);
        Linear(*stream, x.view(), w.view(), nullptr, results.back().view());
        EXPECT_TRUE(SameBits(results[0], results.back())) << tokens << " tokens, " << threads;
      }
    }
  }
}

// A token's row is the same in every batch that uses the same kernel: below and above the GEMV's
// limit, and below oneDNN's on a CPU with AMX.
TEST(Linear, ResultsDoNotDependOnTheBatchWithinAKernel) {
  Random random(2);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Matrix x = Matrix::Normal(random, DType::kF32, 300, 700);
    const Matrix w = Matrix::Normal(random, dtype, 129, 700);
    ForEachIsa(2, [&](Stream& stream) {
      const auto run = [&](int64_t first, int64_t count) {
        Matrix y(DType::kF32, count, 129);
        Linear(stream, x.view().Rows(first, count), w.view(), nullptr, y.view());
        return y;
      };
      const Matrix alone = run(100, 1);
      for (int64_t batch = 2; batch <= cpu::MaxGemvTokens(dtype); ++batch) {
        const Matrix y = run(101 - batch, batch);
        EXPECT_EQ(std::memcmp(alone.view().Row<float>(0), y.view().Row<float>(batch - 1), 129 * 4),
                  0)
            << batch << " tokens";
      }
      const bool amx = dtype == DType::kBF16 && HasAmxBf16();
      const Matrix few = run(90, 20), many = amx ? run(80, 31) : run(0, 300);
      EXPECT_EQ(
          std::memcmp(few.view().Row<float>(10), many.view().Row<float>(amx ? 20 : 100), 129 * 4),
          0);
    });
  }
}

// Several products at once give the same results as separate ones, whichever kernel runs them.
TEST(Linear, ProductsOfTheSameInputGiveTheSameBitsAsAlone) {
  Random random(3);
  constexpr int64_t kIn = 331;
  for (const int64_t tokens : {1, 2, 6, 16, 17, 40}) {
    for (const DType last : {DType::kBF16, DType::kF16}) {
      const Matrix x = Matrix::Normal(random, DType::kF32, tokens, kIn);
      std::vector<Matrix> weights, biases, alone, together;
      for (const int64_t out : {37, 1, 150}) {
        weights.push_back(
            Matrix::Normal(random, weights.size() == 2 ? last : DType::kBF16, out, kIn, 3));
        biases.push_back(Matrix::Normal(random, DType::kF32, 1, out));
        alone.push_back(Matrix::Normal(random, DType::kF32, tokens, out));
        together.push_back(alone.back());
      }
      ForEachIsa(3, [&](Stream& stream) {
        std::vector<LinearPart> parts;
        for (size_t i = 0; i < weights.size(); ++i) {
          const float* bias = i == 1 ? nullptr : biases[i].view().Row<float>(0);
          parts.push_back({.weight = weights[i].view(), .bias = bias, .y = together[i].view()});
          Linear(stream, x.view(), weights[i].view(), bias, alone[i].view(), Epilogue::kAdd);
        }
        Linear(stream, x.view(), parts, Epilogue::kAdd);
        for (size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(SameBits(alone[i], together[i])) << tokens << " tokens, part " << i;
        }
      });
    }
  }
}

// On a separate thread: its scratch is new, and its pool's.
TEST(Linear, ScratchStaysWithinWhatPlansCount) {
  constexpr int64_t kOut = 200;
  for (const int64_t depth : {97, 700}) {
    for (const int64_t rows : {1, 16, 150, 1100}) {
      std::thread([&] {
        Random random(5);
        const Matrix x = Matrix::Normal(random, DType::kF32, rows, depth);
        ForEachIsa(3, [&](Stream& stream) {
          const int64_t before = cpu::ScratchBytesHeld().load();
          for (const int64_t tokens : {int64_t{1}, int64_t{4}, rows / 2 + 1, rows}) {
            for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
              const Matrix w = Matrix::Normal(random, dtype, kOut, depth);
              Matrix y(DType::kF32, tokens, kOut);
              if (tokens <= rows) {
                Linear(stream, x.view().Rows(0, tokens), w.view(), nullptr, y.view());
              }
            }
          }
          const int64_t grown = cpu::ScratchBytesHeld().load() - before;
          EXPECT_LE(grown, static_cast<int64_t>(LinearScratchBytes(rows, depth, 3)))
              << rows << " rows of " << depth;
        });
      }).join();
    }
  }
}

TEST(LinearDeathTest, ShapesMustAgree) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  Matrix x(DType::kF32, 2, 8), w(DType::kBF16, 4, 9), y(DType::kF32, 2, 4);
  EXPECT_DEATH(Linear(*stream, x.view(), w.view(), nullptr, y.view()), "weight \\[4, 9\\]");
}

}  // namespace
}  // namespace litecache::ops
