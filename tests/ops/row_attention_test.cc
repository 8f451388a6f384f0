#include "ops/attention/row_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/paged_testing.h"

namespace litecache::ops {
namespace {

// One head: parts over separate blocks, by list or by range.
struct PartSpec {
  int64_t tokens, begin, count;  // of a block; begin < 0: `count` random ones
};

struct Head {
  std::vector<PagedBlock> blocks;
  std::vector<std::vector<int32_t>> indices;
  std::vector<RowPart> parts;
  std::vector<const std::byte*> rows;  // all of them, for the reference
};

Head MakeHead(Random& random, const RowFormat& format, std::span<const PartSpec> specs) {
  Head head;
  for (const PartSpec& spec : specs) {
    constexpr int64_t kPageTokens[] = {1, 7, 16, 64, 100};
    head.blocks.emplace_back(random, format, spec.tokens, kPageTokens[random.Integer(0, 4)]);
    head.indices.push_back(spec.begin < 0 ? Choose(random, spec.tokens, spec.count)
                                          : std::vector<int32_t>());
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const PagedRows rows = head.blocks[i].rows();
    const bool list = specs[i].begin < 0;
    head.parts.push_back({.rows = rows,
                          .indices = list ? head.indices[i].data() : nullptr,
                          .begin = list ? 0 : specs[i].begin,
                          .count = specs[i].count});
    for (int64_t r = 0; r < specs[i].count; ++r) {
      std::byte* row =
          rows.Row(list ? head.indices[i][static_cast<size_t>(r)] : specs[i].begin + r);
      FillRow(random, format, row);
      head.rows.push_back(row);
    }
  }
  return head;
}

// Softmax attention in double; the bound is that of the attention test: with bf16 rows, q * scale
// and the probabilities are rounded by 2^-9 each.
void ExpectAttention(const RowFormat& format, const Head& head, const float* q, float scale,
                     const float* sink, float cap, const float* out) {
  const int64_t d = format.head_dim;
  const double unit =
      format.encoding == RowEncoding::kBF16 ? std::ldexp(1.0, -9) : std::ldexp(1.0, -24) * 4;
  std::vector<double> p, error;
  double highest = -1e300, total = 0;
  for (const std::byte* row : head.rows) {
    double score = 0, magnitude = 0;
    for (int64_t c = 0; c < d; ++c) {
      const double product = static_cast<double>(q[c]) * RowValue(format, row, c) * scale;
      score += product;
      magnitude += std::abs(product);
    }
    if (cap != 0) score = cap * std::tanh(score / cap);
    p.push_back(score);
    error.push_back(
        unit * (std::min(magnitude, 6 * magnitude / std::sqrt(static_cast<double>(d))) + 1e-3) * 2);
    highest = std::max(highest, score);
  }
  if (sink != nullptr) highest = std::max(highest, double{*sink});
  for (double& x : p) total += x = std::exp(x - highest);
  if (sink != nullptr) total += std::exp(*sink - highest);
  for (int64_t c = 0; c < d; ++c) {
    double expected = 0, bound = 0;
    for (size_t r = 0; r < p.size(); ++r) {
      expected += p[r] / total * RowValue(format, head.rows[r], d + c);
    }
    for (size_t r = 0; r < p.size(); ++r) {
      const double v = RowValue(format, head.rows[r], d + c);
      bound += p[r] / total * (error[r] * std::abs(v - expected) + unit * std::abs(v));
    }
    ASSERT_NEAR(out[c], expected, bound + 1e-6)
        << "element " << c << " of " << d << ", " << head.rows.size() << " rows";
  }
}

struct Problem {
  RowFormat format;
  int64_t group;
  std::vector<Head> heads;
  std::vector<float> q;
  float scale;
  std::vector<float> sinks;  // of all query heads

  size_t size() const { return static_cast<size_t>(group * format.head_dim); }

  std::vector<float> Run(Stream& stream, bool with_sinks = false, float cap = 0) const {
    std::vector<float> out(q.size(), std::nanf(""));
    std::vector<RowAttentionHead> work;
    for (size_t h = 0; h < heads.size(); ++h) {
      work.push_back({.q = q.data() + h * size(),
                      .out = out.data() + h * size(),
                      .parts = heads[h].parts,
                      .first_query = static_cast<int64_t>(h) * group});
    }
    RowAttention(stream, format, group, work, {scale, with_sinks ? sinks.data() : nullptr, cap});
    return out;
  }

  void Expect(const std::vector<float>& out, bool with_sinks, float cap) const {
    for (size_t h = 0; h < heads.size(); ++h) {
      for (int64_t j = 0; j < group; ++j) {
        SCOPED_TRACE("head " + std::to_string(h) + ", query head " + std::to_string(j) + " of " +
                     std::to_string(group) + ", " + std::string(Name(format.encoding)));
        const size_t query = h * static_cast<size_t>(group) + static_cast<size_t>(j);
        const size_t at = query * static_cast<size_t>(format.head_dim);
        ExpectAttention(format, heads[h], q.data() + at, scale,
                        with_sinks ? &sinks[query] : nullptr, cap, out.data() + at);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
};

Problem MakeProblem(Random& random, RowEncoding encoding, int64_t head_dim, int64_t group,
                    const std::vector<std::vector<PartSpec>>& heads, float spread = 1.0f) {
  Problem p{.format = {encoding, head_dim},
            .group = group,
            .heads = {},
            .q = {},
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .sinks = RandomSinks(random, static_cast<int64_t>(heads.size()) * group)};
  for (const auto& specs : heads) p.heads.push_back(MakeHead(random, p.format, specs));
  for (size_t i = 0; i < heads.size() * p.size(); ++i) p.q.push_back(random.Normal(spread));
  return p;
}

void RunCase(const Problem& p, int threads) {
  ForEachIsa(threads, [&](Stream& stream) {
    for (const auto& [sinks, cap] : {std::pair(false, 0.0f), {true, 0.0f}, {false, 1.3f}}) {
      SCOPED_TRACE(::testing::Message() << "sinks " << sinks << ", cap " << cap);
      p.Expect(p.Run(stream, sinks, cap), sinks, cap);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

constexpr RowEncoding kPlain[] = {RowEncoding::kBF16, RowEncoding::kF32};

// Sink, cached, recent: the parts of a head in the policy, with empty parts in between.
std::vector<PartSpec> Hybrid(int64_t scale) {
  return {{64, 0, 4},  {40, 3, 0},   {40 * scale, 0, 37 * scale},
          {20, -1, 0}, {64, 13, 50}, {90 * scale, -1, 29 * scale}};
}

TEST(RowAttention, HeadDimensionsMatchDoublePrecision) {
  Random random(90);
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {7, 16, 32, 48, 64, 80, 96, 128, 131, 256}) {
      RunCase(MakeProblem(random, encoding, head_dim, 3, {Hybrid(1), Hybrid(2)}), 2);
    }
  }
}

TEST(RowAttention, Groups) {
  Random random(91);
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {64, 100}) {
      for (int64_t group : {1, 2, 4, 5, 7, 8, 16, 17, 71}) {
        RunCase(MakeProblem(random, encoding, head_dim, group, {Hybrid(1)}), 2);
      }
    }
  }
}

TEST(RowAttention, AnyNumberOfRows) {
  Random random(92);
  for (RowEncoding encoding : kPlain) {
    for (int64_t count : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 513, 640}) {
      RunCase(MakeProblem(random, encoding, 64, 4,
                          {{{1000, -1, count}}, {{1000, 5, count}}, {{3, 2, 1}}}),
              2);
    }
    // Many parts with one row or none.
    std::vector<PartSpec> parts;
    for (int i = 0; i < 150; ++i) parts.push_back({9, i % 4 == 0 ? -1 : i % 9, i % 3 == 1 ? 0 : 1});
    RunCase(MakeProblem(random, encoding, 64, 4, {parts}), 2);
  }
}

TEST(RowAttention, LongHeadsAreSplitAndMerged) {
  Random random(93);
  for (RowEncoding encoding : kPlain) {
    RunCase(MakeProblem(random, encoding, 64, 4,
                        {{{64, 0, 4}, {3300, 0, 3276}, {64, 0, 64}},
                         {{30000, -1, 3344}},
                         {{64, 0, 64}},
                         {{20000, -1, 9000}}}),
            3);
  }
}

TEST(RowAttention, SharpSoftmax) {
  Random random(94);
  for (RowEncoding encoding : kPlain) {
    RunCase(MakeProblem(random, encoding, 64, 2, {Hybrid(1), Hybrid(30)}, 20.0f), 2);
  }
}

// Scores outside exp's range and infinite ones of both signs: the result is still a mean of V.
TEST(RowAttention, HugeScoresNeverMakeNaN) {
  Random random(95);
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {32, 40}) {
      for (float spread : {1e4f, 1e18f, 1e30f, 3e38f}) {
        Problem p = MakeProblem(random, encoding, head_dim, 3, {Hybrid(1), Hybrid(20)});
        for (size_t i = 0; i < p.q.size(); ++i) {
          p.q[i] = i / p.size() % 2 == 0 ? spread : -spread;
        }
        int64_t r = 0;
        for (Head& head : p.heads) {
          for (const std::byte* row : head.rows) {
            const float k = r++ / 40 % 2 == 0 ? 2.0f : -2.0f;
            for (int64_t c = 0; c < head_dim; ++c) {
              SetRowValue(p.format, const_cast<std::byte*>(row), c, k);
            }
          }
        }
        ForEachIsa(2, [&](Stream& stream) {
          for (float x : p.Run(stream)) ASSERT_LT(std::abs(x), 10.0f) << "spread " << spread;
        });
      }
    }
  }
}

TEST(RowAttention, ResultsDoNotDependOnThreadsOrOtherHeads) {
  Random random(96);
  for (RowEncoding encoding : kPlain) {
    for (int64_t head_dim : {64, 72}) {
      const Problem p = MakeProblem(
          random, encoding, head_dim, 4,
          {{{64, 0, 4}, {3300, 0, 3276}, {64, 0, 64}}, {{30, -1, 30}}, {{9000, -1, 1500}}});
      std::vector<float> first;
      for (int threads : {1, 2, 3, 4}) {
        CpuDevice device(threads);
        auto stream = device.CreateStream();
        const std::vector<float> out = p.Run(*stream);
        if (first.empty()) first = out;
        EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * sizeof(float)), 0);
        for (size_t h = 0; h < p.heads.size(); ++h) {
          std::vector<float> alone(p.size());
          const RowAttentionHead head{p.q.data() + h * p.size(), alone.data(), p.heads[h].parts};
          RowAttention(*stream, p.format, p.group, {&head, 1}, p.scale);
          EXPECT_EQ(
              std::memcmp(alone.data(), first.data() + h * p.size(), p.size() * sizeof(float)), 0)
              << "head " << h << ", " << threads << " threads";
        }
      }
    }
  }
}

// All rows of a context as one part: the dense operation's result, up to rounding.
TEST(RowAttention, AgreesWithDenseAttention) {
  Random random(97);
  for (RowEncoding encoding : kPlain) {
    const DType dtype = encoding == RowEncoding::kBF16 ? DType::kBF16 : DType::kF32;
    for (int64_t rows : {1, 65, 1400}) {
      const int64_t d = 64, group = 4;
      const KvGeometry geometry{.kv_heads = 1, .head_dim = d, .dtype = dtype, .page_tokens = 16};
      PagedBlock block(random, FormatOf(dtype, d), rows, 16);
      for (int64_t t = 0; t < rows; ++t) FillRow(random, FormatOf(dtype, d), block.rows().Row(t));
      const Matrix q = Matrix::Normal(random, DType::kF32, 1, group * d);
      std::byte* const* pages = block.rows().pages;
      const KvSequence sequence{.first_row = 0,
                                .rows = 1,
                                .past = rows - 1,
                                .pages = &pages,
                                .pages_per_head = (rows + 15) / 16};
      const RowPart part{.rows = block.rows(), .begin = 0, .count = rows};
      ForEachIsa(2, [&](Stream& stream) {
        Matrix dense(DType::kF32, 1, group * d), sparse(DType::kF32, 1, group * d);
        Attention(stream, geometry, {&sequence, 1}, q.view(), group, 0.125f, dense.view());
        const RowAttentionHead head{q.view().Row<float>(0), sparse.Row(0), {&part, 1}};
        RowAttention(stream, FormatOf(dtype, d), group, {&head, 1}, 0.125f);
        // bf16 probabilities are rounded relative to the maximum of the previous tiles.
        const double bound = encoding == RowEncoding::kBF16 ? std::ldexp(1.0, -8) : 1e-5;
        for (int64_t i = 0; i < group * d; ++i) {
          ASSERT_NEAR(sparse.At(0, i), dense.At(0, i), bound) << rows << " rows";
        }
      });
    }
  }
}

TEST(RowAttentionDeathTest, ArgumentsAreChecked) {
  CpuDevice device(1);
  auto stream = device.CreateStream();
  std::vector<float> q(8), out(8);
  const RowAttentionHead head{q.data(), out.data(), {}};
  EXPECT_DEATH(RowAttention(*stream, {RowEncoding::kBF16, 8}, 1, {&head, 1}, 1.0f),
               "a head without rows");
  EXPECT_DEATH(RowAttention(*stream, {RowEncoding::kFp8, 8}, 1, {}, 1.0f), "fp8");
}

}  // namespace
}  // namespace litecache::ops
