#include "ops/rope.h"

#include "ops/cuda/dense_testing.h"

namespace litecache::ops::cuda {
namespace {

using RopeTest = DenseTest;

TEST_F(RopeTest, MatchesDoublePrecisionUpToMillionsOfTokens) {
  for (int64_t half : {1, 32, 40, 48, 64, 128, 300}) {
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
      constexpr float kScale = 1.25f;
      const MatrixView got = OnDevice(x);
      const MatrixView rotations =
          MatrixView::Of(Poisoned<float>(static_cast<size_t>(rows * 2 * half)), rows, 2 * half);
      ops::RopeRotations(*stream_, std::span<const int32_t>(Upload(positions), positions.size()),
                         std::span<const float>(Upload(inv_freq), inv_freq.size()), kScale,
                         rotations);
      ops::Rope(*stream_, got, rotations, heads);
      const auto pair = [&](int64_t r, int64_t c) {
        const int64_t i = c % half;
        const int64_t lower = c / (2 * half) * 2 * half + i;
        return std::pair(x.At(r, lower), x.At(r, lower + half));
      };
      ExpectNear(
          got,
          [&](int64_t r, int64_t c) {
            const auto [a, b] = pair(r, c);
            const double angle = static_cast<double>(positions[static_cast<size_t>(r)]) *
                                 static_cast<double>(inv_freq[static_cast<size_t>(c % half)]);
            return c % (2 * half) < half ? kScale * (a * std::cos(angle) - b * std::sin(angle))
                                         : kScale * (b * std::cos(angle) + a * std::sin(angle));
          },
          // A few units of f32: of sine and cosine, their scaling, two products and a sum.
          [&](int64_t r, int64_t c) {
            const auto [a, b] = pair(r, c);
            return std::ldexp(6.0, -24) * kScale * (std::abs(a) + std::abs(b));
          });
    }
  }
}

}  // namespace
}  // namespace litecache::ops::cuda
