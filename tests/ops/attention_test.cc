#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "ops/ops_testing.h"

namespace litecache::ops {
namespace {

// The pages of some sequences, shuffled within one block of memory whose unused rows are NaN.
class Pages {
 public:
  Pages(Random& random, const KvGeometry& geometry, std::span<const int64_t> contexts)
      : geometry_(geometry) {
    int64_t total = 0;
    for (int64_t context : contexts) total += PagesOf(context) * geometry.kv_heads;
    memory_.resize(static_cast<size_t>(total) * geometry.page_bytes());
    for (std::byte& byte : memory_) byte = std::byte{0xff};  // NaN in both types
    std::vector<int64_t> order(static_cast<size_t>(total));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1],
                order[static_cast<size_t>(random.Integer(0, static_cast<int64_t>(i) - 1))]);
    }
    size_t next = 0;
    for (int64_t context : contexts) {
      auto& table = tables_.emplace_back();
      for (int64_t i = 0; i < PagesOf(context) * geometry.kv_heads; ++i) {
        table.push_back(memory_.data() +
                        order[next++] * static_cast<int64_t>(geometry.page_bytes()));
      }
      auto& heads = heads_.emplace_back();
      for (int64_t h = 0; h < geometry.kv_heads; ++h) {
        heads.push_back(table.data() + h * PagesOf(context));
      }
    }
  }

  int64_t PagesOf(int64_t context) const {
    return (context + geometry_.page_tokens - 1) / geometry_.page_tokens;
  }
  KvSequence Sequence(size_t i, int64_t first_row, int64_t rows, int64_t past) {
    return {.first_row = first_row,
            .rows = rows,
            .past = past,
            .pages = heads_[i].data(),
            .pages_per_head = static_cast<int64_t>(tables_[i].size()) / geometry_.kv_heads};
  }

 private:
  KvGeometry geometry_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<std::byte*>> tables_;
  std::vector<std::vector<std::byte* const*>> heads_;
};

struct Part {
  int64_t past, rows;
};

struct Case {
  int64_t head_dim, kv_heads, group, page_tokens;
  DType dtype;
  std::vector<Part> parts;
  float spread = 1.0f;  // of q: a large spread makes the softmax sharp
};

// All K and V of a case, so that the reference needs no pages.
struct Inputs {
  std::vector<Matrix> k, v;  // per sequence: [past + rows, kv_heads * head_dim]
  Matrix q;
  int64_t rows;
};

Inputs MakeInputs(const Case& c, Random& random) {
  int64_t rows = 0;
  std::vector<Matrix> k, v;
  for (const Part& part : c.parts) {
    k.push_back(
        Matrix::Normal(random, DType::kF32, part.past + part.rows, c.kv_heads * c.head_dim));
    v.push_back(
        Matrix::Normal(random, DType::kF32, part.past + part.rows, c.kv_heads * c.head_dim));
    rows += part.rows;
  }
  return {k, v,
          Matrix::Normal(random, DType::kF32, rows, c.kv_heads * c.group * c.head_dim, 3, c.spread),
          rows};
}

KvGeometry GeometryOf(const Case& c) {
  return {.kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .dtype = c.dtype,
          .page_tokens = c.page_tokens};
}

Matrix RunAttention(Stream& stream, const Case& c, const Inputs& in, const Softmax& softmax) {
  Random random(99);
  const KvGeometry geometry = GeometryOf(c);
  std::vector<int64_t> contexts;
  for (const Part& part : c.parts) contexts.push_back(part.past + part.rows);
  Pages pages(random, geometry, contexts);
  const int64_t columns = c.kv_heads * c.head_dim;
  std::vector<KvSequence> sequences;
  Matrix k(DType::kF32, in.rows, columns, 1), v(DType::kF32, in.rows, columns, 2);
  int64_t first = 0;
  for (size_t i = 0; i < c.parts.size(); ++i) {
    const Part& part = c.parts[i];
    if (part.past > 0) {  // appended by earlier steps
      const KvSequence before = pages.Sequence(i, 0, part.past, 0);
      AppendKv(stream, geometry, {&before, 1}, in.k[i].view().Rows(0, part.past),
               in.v[i].view().Rows(0, part.past));
    }
    for (int64_t r = 0; r < part.rows; ++r) {
      std::memcpy(k.Row(first + r), in.k[i].view().Row<float>(part.past + r), columns * 4);
      std::memcpy(v.Row(first + r), in.v[i].view().Row<float>(part.past + r), columns * 4);
    }
    sequences.push_back(pages.Sequence(i, first, part.rows, part.past));
    first += part.rows;
  }
  AppendKv(stream, geometry, sequences, k.view(), v.view());
  Matrix out(DType::kF32, in.rows, c.kv_heads * c.group * c.head_dim, 1);
  Attention(stream, geometry, sequences, in.q.view(), c.kv_heads * c.group, softmax, out.view());
  return out;
}

// Softmax attention in double. The bound: with bf16 rows, q * scale and the probabilities are
// rounded by 2^-9 each. An error e_j of score j moves the output by at most sum_j p_j |e_j| |v_j -
// out|; |e_j| <= 2^-9 |q * k_j| elementwise. The rounding of the probabilities adds 2^-9 sum_j p_j
// |v_j|.
void ExpectAttention(const Case& c, const Inputs& in, const Softmax& softmax, const Matrix& out) {
  const bool half = c.dtype == DType::kBF16;
  const double unit = half ? std::ldexp(1.0, -9) : std::ldexp(1.0, -24) * 4;
  int64_t first = 0;
  for (size_t s = 0; s < c.parts.size(); ++s) {
    const Part& part = c.parts[s];
    for (int64_t r = 0; r < part.rows; ++r) {
      const int64_t seen = part.past + r + 1;
      for (int64_t j = 0; j < c.kv_heads * c.group; ++j) {
        const int64_t column = j / c.group * c.head_dim;
        std::vector<double> p(static_cast<size_t>(seen)), error(static_cast<size_t>(seen));
        double highest = -1e300, total = 0;
        for (int64_t t = 0; t < seen; ++t) {
          double score = 0, magnitude = 0;
          for (int64_t d = 0; d < c.head_dim; ++d) {
            const double product = in.q.At(first + r, j * c.head_dim + d) *
                                   RoundTo(c.dtype, static_cast<float>(in.k[s].At(t, column + d))) *
                                   softmax.scale;
            score += product;
            magnitude += std::abs(product);
          }
          // Its slope is at most 1, so errors do not grow.
          if (softmax.cap != 0) score = softmax.cap * std::tanh(score / softmax.cap);
          p[static_cast<size_t>(t)] = score;
          // The errors of many products with random signs average out: 6 standard deviations.
          error[static_cast<size_t>(t)] =
              unit * (std::min(magnitude, 6 * magnitude / std::sqrt(c.head_dim)) + 1e-3) * 2;
          highest = std::max(highest, score);
        }
        if (softmax.sinks != nullptr) highest = std::max(highest, double{softmax.sinks[j]});
        for (double& x : p) total += x = std::exp(x - highest);
        if (softmax.sinks != nullptr) total += std::exp(softmax.sinks[j] - highest);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          double expected = 0, bound = 0;
          const auto value = [&](int64_t t) {
            return RoundTo(c.dtype, static_cast<float>(in.v[s].At(t, column + d)));
          };
          for (int64_t t = 0; t < seen; ++t) {
            expected += p[static_cast<size_t>(t)] / total * value(t);
          }
          for (int64_t t = 0; t < seen; ++t) {
            const auto i = static_cast<size_t>(t);
            bound += p[i] / total *
                     (error[i] * std::abs(value(t) - expected) + unit * std::abs(value(t)));
          }
          ASSERT_NEAR(out.At(first + r, j * c.head_dim + d), expected, bound + 1e-6)
              << "sequence " << s << ", row " << r << ", head " << j << ", element " << d
              << ", head_dim " << c.head_dim << ", group " << c.group << ", " << Name(c.dtype);
        }
      }
    }
    first += part.rows;
  }
}

void RunCase(const Case& c, int threads) {
  Random random(static_cast<uint64_t>(c.head_dim * 131 + c.group * 17 + c.page_tokens));
  const Inputs in = MakeInputs(c, random);
  const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  const std::vector<float> sinks = RandomSinks(random, c.kv_heads * c.group);
  ForEachIsa(threads, [&](Stream& stream) {
    for (const Softmax& softmax :
         {Softmax(scale), Softmax(scale, sinks.data()), Softmax(scale, nullptr, 1.7f)}) {
      SCOPED_TRACE(::testing::Message() << (softmax.sinks != nullptr ? "with" : "without")
                                        << " sinks, cap " << softmax.cap);
      ExpectAttention(c, in, softmax, RunAttention(stream, c, in, softmax));
    }
  });
}

TEST(Attention, HeadDimensionsMatchDoublePrecision) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t head_dim : {7, 16, 32, 48, 64, 80, 96, 112, 128, 256}) {
      RunCase({head_dim, 2, 3, 16, dtype, {{0, 37}, {70, 1}}}, 2);
    }
  }
}

TEST(Attention, GroupsAndPageSizes) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t group : {1, 2, 4, 7, 8, 71}) {
      for (int64_t page_tokens : {1, 7, 64, 100}) {
        RunCase({32, 1, group, page_tokens, dtype, {{0, 9}, {101, 1}}}, 3);
      }
    }
  }
}

TEST(Attention, MixedBatches) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    RunCase({64, 2, 4, 16, dtype, {{0, 1}, {5, 1}, {0, 130}, {63, 65}, {64, 1}, {200, 3}}}, 4);
  }
}

TEST(Attention, LongContextsAreSplitAndMerged) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    RunCase({16, 1, 2, 16, dtype, {{511, 1}, {512, 1}, {1600, 2}, {9000, 1}}}, 2);
  }
}

TEST(Attention, SharpSoftmax) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    RunCase({64, 2, 2, 16, dtype, {{0, 70}, {700, 1}}, 20.0f}, 2);
  }
}

// Scores far outside exp's range, overflowing to infinities of both signs: the result is still a
// mean of V.
TEST(Attention, HugeScoresNeverMakeNaN) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (float spread : {1e4f, 1e18f, 1e30f, 3e38f}) {
      Case c{32, 1, 2, 16, dtype, {{0, 70}, {600, 1}}};
      Random random(5);
      Inputs in = MakeInputs(c, random);
      for (int64_t r = 0; r < in.rows; ++r) {
        for (int64_t i = 0; i < 64; ++i) in.q.Set(r, i, r % 2 == 0 ? spread : -spread);
      }
      for (Matrix& k : in.k) {
        for (int64_t r = 0; r < k.view().rows; ++r) {
          for (int64_t i = 0; i < 32; ++i) k.Set(r, i, (r / 40 % 2 == 0 ? 1.0f : -1.0f) * 2.0f);
        }
      }
      ForEachIsa(2, [&](Stream& stream) {
        const float sinks[] = {-3e38f, 3e38f};
        for (const Softmax& softmax : {Softmax(1), Softmax(1, sinks), Softmax(1, nullptr, 50)}) {
          const Matrix out = RunAttention(stream, c, in, softmax);
          for (int64_t r = 0; r < in.rows; ++r) {
            for (int64_t i = 0; i < 64; ++i) {
              ASSERT_LT(std::abs(out.At(r, i)), 10.0) << "spread " << spread << ", row " << r;
            }
          }
        }
      });
    }
  }
}

TEST(Attention, ResultsDoNotDependOnThreadsOrNeighbours) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const Case together{64, 2, 4, 16, dtype, {{1500, 1}, {20, 90}, {300, 1}}};
    Random random(6);
    const Inputs in = MakeInputs(together, random);
    std::vector<Matrix> results;
    for (int threads : {1, 2, 3, 4}) {
      CpuDevice device(threads);
      auto stream = device.CreateStream();
      results.push_back(RunAttention(*stream, together, in, 0.125f));
      EXPECT_TRUE(SameBits(results[0], results.back())) << threads << " threads";
    }
    int64_t first = 0;
    for (size_t i = 0; i < together.parts.size(); ++i) {
      Case alone = together;
      alone.parts = {together.parts[i]};
      const int64_t rows = together.parts[i].rows;
      Matrix q(DType::kF32, rows, in.q.view().cols);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(q.Row(r), in.q.view().Row<float>(first + r),
                    static_cast<size_t>(in.q.view().cols) * 4);
      }
      CpuDevice device(2);
      auto stream = device.CreateStream();
      const Matrix out = RunAttention(*stream, alone, {{in.k[i]}, {in.v[i]}, q, rows}, 0.125f);
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_EQ(std::memcmp(out.view().Row<float>(r), results[0].view().Row<float>(first + r),
                              static_cast<size_t>(out.view().cols) * 4),
                  0)
            << "sequence " << i << ", row " << r;
      }
      first += rows;
    }
  }
}

}  // namespace
}  // namespace litecache::ops
