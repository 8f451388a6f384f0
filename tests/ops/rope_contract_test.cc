#include <tuple>
#include <utility>

#include "ops/dense/rope.h"
#include "ops/dense_testing.h"

namespace litecache::ops {
namespace {

using RopeTest = DenseTest;

TEST_F(RopeTest, MatchesDoublePrecisionUpToMillionsOfTokens) {
  for (int64_t half : {1, 3, 8, 16, 32, 40, 48, 64, 128, 300}) {
    for (const auto& [rows, heads] : {std::pair<int64_t, int64_t>{1, 32}, {7, 3}, {300, 5}}) {
      SCOPED_TRACE(fmt::format("head_dim {}, rows {}, heads {}", 2 * half, rows, heads));
      const Matrix x = Matrix::Normal(random_, DType::kF32, rows, heads * 2 * half, 5);
      std::vector<int32_t> positions(static_cast<size_t>(rows));
      for (int32_t& position : positions) {
        position = static_cast<int32_t>(random_.Integer(0, int64_t{1} << random_.Integer(0, 22)));
      }
      positions[0] = 1048575;
      std::vector<float> inv_freq(static_cast<size_t>(half));
      for (int64_t i = 0; i < half; ++i) {
        inv_freq[static_cast<size_t>(i)] = static_cast<float>(
            std::pow(500000.0, -static_cast<double>(i) / static_cast<double>(half)));
      }
      const float scale = rows == 7 ? 1.0f : 1.25f;
      // Steps of 1000 positions, one of which begins at positions[1].
      const RopeGrowth growth = half % 3 == 0 ? RopeGrowth() : RopeGrowth{0.35f, 1000.0f};
      if (rows > 1) positions[1] = 7000;
      const auto scale_of = [&](int64_t r) {
        const int64_t steps = positions[static_cast<size_t>(r)] / 1000;
        const auto beta = static_cast<double>(growth.beta);
        return scale * (1 + beta * std::log(1.0 + static_cast<double>(steps)));
      };
      // The pair of elements that column c belongs to, and its angle's cosine and sine.
      const auto pair = [&](int64_t r, int64_t c) {
        const int64_t lower = c / (2 * half) * 2 * half + c % half;
        return std::pair(x.At(r, lower), x.At(r, lower + half));
      };
      std::vector<double> cosines, sines;
      for (const int32_t position : positions) {
        for (const float frequency : inv_freq) {
          const double angle = static_cast<double>(position) * static_cast<double>(frequency);
          cosines.push_back(std::cos(angle));
          sines.push_back(std::sin(angle));
        }
      }
      ForEachVariant([&] {
        const MatrixView got = OnDevice(x);
        const auto rotations =
            MatrixView::Of(Poisoned<float>(static_cast<size_t>(rows * 2 * half)), rows, 2 * half);
        RopeRotations(*stream_, SpanOnDevice(positions), SpanOnDevice(inv_freq), scale, rotations,
                      growth);
        Rope(*stream_, got, rotations, heads);
        ExpectNear(
            got,
            [&](int64_t r, int64_t c) {
              const auto [a, b] = pair(r, c);
              const auto i = static_cast<size_t>(r * half + c % half);
              return c % (2 * half) < half ? scale_of(r) * (a * cosines[i] - b * sines[i])
                                           : scale_of(r) * (b * cosines[i] + a * sines[i]);
            },
            // A few units of f32: for sine and cosine, their scale, two products and a sum.
            [&](int64_t r, int64_t c) {
              const auto [a, b] = pair(r, c);
              return std::ldexp(9.0, -24) * scale_of(r) * (std::abs(a) + std::abs(b));
            });
      });
    }
  }
}

TEST_F(RopeTest, HeadsAreNormedAndRotatedAtOnce) {
  for (int64_t half : {1, 20, 32, 40, 64, 128, 150, 256}) {
    for (const auto& [rows, q_heads, k_heads] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 32, 8}, {7, 3, 3}, {130, 5, 1}}) {
      for (const bool normed : {false, true}) {
        SCOPED_TRACE(fmt::format("head_dim {}, rows {}, heads {} and {}, normed {}", 2 * half, rows,
                                 q_heads, k_heads, normed));
        constexpr float kEpsilon = 1e-3f;
        const int64_t d = 2 * half;
        const Matrix rotations = Matrix::Normal(random_, DType::kF32, rows, d);
        // As many parts as one launch takes, and more.
        const size_t count = half % 3 + 2;
        std::vector<Matrix> x;
        std::vector<std::vector<float>> norms;
        std::vector<std::vector<double>> factors(count);  // of each head's norm: [rows, heads]
        const auto heads_of = [&](size_t i) { return i % 2 == 0 ? q_heads : k_heads; };
        for (size_t i = 0; i < count; ++i) {
          const int64_t heads = heads_of(i);
          x.push_back(Matrix::Normal(random_, DType::kF32, rows, heads * d, i % 2 == 0 ? 5 : 3));
          norms.push_back(RandomVector(d));
          for (int64_t j = 0; j < rows * heads; ++j) {
            double squares = 0;
            for (int64_t e = 0; e < d; ++e) {
              squares += std::pow(x[i].At(j / heads, j % heads * d + e), 2);
            }
            factors[i].push_back(1 / std::sqrt(squares / static_cast<double>(d) + kEpsilon));
          }
        }
        const auto compare = [&](size_t i, const MatrixView& got) {
          SCOPED_TRACE(fmt::format("part {} of {}", i, count));
          // Element j of the head that contains column c, normed.
          const auto element = [&](int64_t r, int64_t c, int64_t j) {
            const int64_t first = c / d * d;
            if (!normed) return x[i].At(r, first + j);
            return x[i].At(r, first + j) * norms[i][static_cast<size_t>(j)] *
                   factors[i][static_cast<size_t>(r * heads_of(i) + c / d)];
          };
          ExpectNear(
              got,
              [&](int64_t r, int64_t c) {
                const int64_t j = c % d, e = j % half;
                const double a = element(r, c, e), b = element(r, c, e + half);
                const double cosine = rotations.At(r, e), sine = rotations.At(r, e + half);
                return j < half ? a * cosine - b * sine : b * cosine + a * sine;
              },
              [&](int64_t r, int64_t c) {
                const int64_t e = c % d % half;
                const double a = element(r, c, e), b = element(r, c, e + half);
                return std::ldexp(normed ? 16.0 : 4.0, -24) * (std::abs(a) + std::abs(b)) *
                       (std::abs(rotations.At(r, e)) + std::abs(rotations.At(r, e + half)));
              });
        };
        ForEachVariant([&] {
          std::vector<ProjectedHeads> parts;
          for (size_t i = 0; i < count; ++i) {
            parts.push_back({.x = OnDevice(x[i]),
                             .heads = heads_of(i),
                             .norm = normed ? Upload(norms[i]) : nullptr});
          }
          RotateHeads(*stream_, parts, kEpsilon, OnDevice(rotations));
          for (size_t i = 0; i < count; ++i) compare(i, parts[i].x);
        });
      }
    }
  }
}

// Some dimensions of a head, in either kind of pairs; the others keep their bits, or are only
// normed.
TEST_F(RopeTest, RotatesTheFirstDimensionsOfAHead) {
  constexpr float kEpsilon = 1e-3f;
  for (const auto& [dim, half] : {std::pair<int64_t, int64_t>{24, 12},
                                  {24, 9},
                                  {40, 17},
                                  {6, 1},
                                  {128, 32},
                                  {128, 48},
                                  {256, 64},
                                  {96, 48},
                                  {400, 150},
                                  {320, 16}}) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      for (const auto& [rows, heads] : {std::pair<int64_t, int64_t>{1, 9}, {140, 3}}) {
        SCOPED_TRACE(fmt::format("{} of {}, {}, rows {}, heads {}", 2 * half, dim,
                                 pairs == RopePairs::kHalves ? "halves" : "neighbours", rows,
                                 heads));
        const Matrix rotations = Matrix::Normal(random_, DType::kF32, rows, 2 * half);
        const Matrix x = Matrix::Normal(random_, DType::kF32, rows, heads * dim, 2);
        const std::vector<float> norm = RandomVector(dim);
        const auto compare = [&](const MatrixView& got, bool normed) {
          std::vector<double> factors(static_cast<size_t>(rows * heads), 1.0);
          for (int64_t j = 0; normed && j < rows * heads; ++j) {
            double squares = 0;
            for (int64_t e = 0; e < dim; ++e) {
              squares += std::pow(x.At(j / heads, j % heads * dim + e), 2);
            }
            factors[static_cast<size_t>(j)] =
                1 / std::sqrt(squares / static_cast<double>(dim) + kEpsilon);
          }
          const auto element = [&](int64_t r, int64_t c, int64_t j) {
            const double value = x.At(r, c / dim * dim + j);
            if (!normed) return value;
            return value * norm[static_cast<size_t>(j)] *
                   factors[static_cast<size_t>(r * heads + c / dim)];
          };
          const bool halves = pairs == RopePairs::kHalves;
          // The pair that column c belongs to, and its angle.
          const auto pair_of = [&](int64_t r, int64_t c) {
            const int64_t at = c % dim, i = halves ? at % half : at / 2;
            return std::tuple(element(r, c, halves ? i : 2 * i),
                              element(r, c, halves ? i + half : 2 * i + 1), rotations.At(r, i),
                              rotations.At(r, half + i));
          };
          ExpectNear(
              got,
              [&](int64_t r, int64_t c) {
                const int64_t at = c % dim;
                if (at >= 2 * half) return element(r, c, at);
                const auto [a, b, cosine, sine] = pair_of(r, c);
                const bool first = halves ? at < half : at % 2 == 0;
                return first ? a * cosine - b * sine : b * cosine + a * sine;
              },
              [&](int64_t r, int64_t c) {
                const int64_t at = c % dim;
                const double unit = std::ldexp(normed ? 16.0 : 4.0, -24);
                if (at >= 2 * half) return normed ? unit * std::abs(element(r, c, at)) : 0.0;
                const auto [a, b, cosine, sine] = pair_of(r, c);
                return unit * (std::abs(a) + std::abs(b)) * (std::abs(cosine) + std::abs(sine));
              });
        };
        ForEachVariant([&] {
          const MatrixView device_rotations = OnDevice(rotations);
          const MatrixView rotated = OnDevice(x);
          Rope(*stream_, rotated, device_rotations, heads, pairs);
          compare(rotated, false);
          for (const bool normed : {false, true}) {
            const ProjectedHeads parts[] = {
                {.x = OnDevice(x), .heads = heads, .norm = normed ? Upload(norm) : nullptr},
                {.x = OnDevice(x), .heads = heads}};
            RotateHeads(*stream_, parts, kEpsilon, device_rotations, pairs);
            compare(parts[0].x, normed);
            compare(parts[1].x, false);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace litecache::ops
