#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "device/machine.h"
#include "ops/experts_testing.h"
#include "ops/linear/linear.h"

namespace litecache::ops {
namespace {

class RouteTest : public ExpertsTest {
 protected:
  // What the operation returns. sent: experts of a row, with that of a share.
  RandomRouting Routed(const MatrixView& logits, const Router& router, int64_t sent,
                       const MatrixView& share = {}, const ExpertRange& own = {}) {
    const auto count = static_cast<size_t>(logits.rows * sent);
    const Routing routing{Poisoned<int32_t>(count), Poisoned<float>(count), logits.rows, sent};
    Route(*stream_, logits, router, routing, share, own);
    RandomRouting routed;
    routed.experts = Download(routing.experts, count);
    routed.weights = Download(routing.weights, count);
    return routed;
  }

  // Where only a range of the experts is here, rows are sent to those of `all` that are in it.
  void ExpectRanges(const RandomRouting& all, const MatrixView& logits, const Router& router,
                    int64_t active) {
    for (const ExpertRange& range : Ranges({logits.rows, 0, 0, logits.cols, active})) {
      SCOPED_TRACE(fmt::format("experts from {}", range.first));
      const RandomRouting part = Routed(logits, router, active, {}, range);
      const RandomRouting here = all.Here(range, active);
      EXPECT_EQ(part.experts, here.experts);
      EXPECT_EQ(part.weights, here.weights);
    }
  }

  // The last of a row's experts is the one of its share, with a weight that no router changes.
  void ExpectShared(const RandomRouting& routed, int64_t row, int64_t experts, int64_t sent,
                    const Matrix& share) {
    const auto last = static_cast<size_t>(row * sent + sent - 1);
    const double weight = 1 / (1 + std::exp(-static_cast<double>(share.At(row, 0))));
    EXPECT_EQ(routed.experts[last], experts) << "row " << row;
    EXPECT_NEAR(routed.weights[last], weight, 1e-6 * weight + 1e-38) << "row " << row;
  }

  // Of a row's weights, relative: a sum over the experts in f32, and exponentials.
  static double Tolerance(int64_t experts) {
    return std::ldexp(static_cast<double>(experts) + 64, -24);
  }
};

TEST_F(RouteTest, RowsGoToTheLargestLogits) {
  for (const auto& [rows, experts, active] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                              {3, 5, 5},
                                              {1, 128, 8},
                                              {70, 33, 4},
                                              {300, 64, 6},
                                              {9, 1024, 64},
                                              {2, 1000, 1}}) {
    for (const auto& [normalized, shared] :
         {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, normalized {}, shared {}", rows, active,
                               experts, normalized, shared));
      const int64_t sent = active + (shared ? 1 : 0);
      if (sent > kMostActiveExperts) continue;
      Matrix logits = Matrix::Normal(random_, DType::kF32, rows, experts, 3, 4.0f);
      for (int64_t row = 0; row < rows; ++row) {  // equal logits
        for (int64_t i = 0; i < experts; i += 3) {
          logits.Set(row, i, static_cast<float>(std::round(logits.At(row, i))));
        }
      }
      logits.Set(0, 0, -std::numeric_limits<float>::infinity());
      logits.Set(rows - 1, experts - 1, 300);
      if (experts == 1) logits.Set(0, 0, -1e30f);
      Matrix share = Matrix::Normal(random_, DType::kF32, rows, 1, 2, 4.0f);
      share.Set(0, 0, -200);
      const Router router{.normalized = normalized};
      const MatrixView x = OnDevice(logits);
      const RandomRouting got = Routed(x, router, sent, shared ? OnDevice(share) : MatrixView());
      if (!shared) ExpectRanges(got, x, router, active);
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(
            order, [&](int32_t a, int32_t b) { return logits.At(row, a) > logits.At(row, b); });
        const double most = logits.At(row, order[0]);
        double sum = 0;
        for (int64_t i = 0; i < (normalized ? active : experts); ++i) {
          sum += std::exp(logits.At(row, order[static_cast<size_t>(i)]) - most);
        }
        for (int64_t i = 0; i < active; ++i) {
          const auto at = static_cast<size_t>(row * sent + i);
          const int32_t want = order[static_cast<size_t>(i)];
          ASSERT_EQ(got.experts[at], want) << "row " << row << ", choice " << i;
          const double weight = std::exp(logits.At(row, want) - most) / sum;
          EXPECT_NEAR(got.weights[at], weight, Tolerance(experts) * weight + 1e-38)
              << "row " << row;
        }
        if (shared) ExpectShared(got, row, experts, sent, share);
      }
    }
  }
}

TEST_F(RouteTest, EachExpertScalesItsWeights) {
  for (const auto& [rows, experts, active] :
       {std::tuple<int64_t, int64_t, int64_t>{40, 9, 3}, {1, 1, 1}, {17, 128, 8}, {5, 1024, 40}}) {
    const std::vector<float> scales = RandomVector(experts);
    const MatrixView logits =
        OnDevice(Matrix::Normal(random_, DType::kF32, rows, experts, 1, 3.0f));
    // The first is Gemma 4's, which differs from most models' only by the scales.
    for (Router router : {Router{.normalized = true}, Router{.normalized = true, .scale = 2.5f},
                          Router{.sigmoid = true}}) {
      SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, sigmoid {}, scale {}", rows, active,
                               experts, router.sigmoid, router.scale));
      RandomRouting expected = Routed(logits, router, active);
      for (size_t i = 0; i < expected.experts.size(); ++i) {
        expected.weights[i] *= scales[static_cast<size_t>(expected.experts[i])];
      }
      router.scales = DeviceMemory::Upload(scales);
      const RandomRouting got = Routed(logits, router, active);
      EXPECT_EQ(got.experts, expected.experts);
      EXPECT_EQ(got.weights, expected.weights);
      ExpectRanges(got, logits, router, active);
    }
  }
}

TEST_F(RouteTest, ScoresAreCorrectedAndScaled) {
  for (const auto& [rows, experts, active] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                              {40, 9, 3},
                                              {3, 64, 63},
                                              {6, 128, 8},
                                              {17, 256, 8},
                                              {5, 512, 10},
                                              {9, 1024, 40},
                                              {2, 1000, 1}}) {
    for (int kind = 0; kind < 32; ++kind) {
      const bool sigmoid = (kind & 1) != 0, normalized = (kind & 2) != 0;
      const bool corrected = (kind & 4) != 0, shared = (kind & 16) != 0;
      const float scale = (kind & 8) != 0 ? 2.5f : 1.0f;
      SCOPED_TRACE(
          fmt::format("{} rows, {} of {} experts, sigmoid {}, normalized {}, corrected {}, "
                      "scale {}, shared {}",
                      rows, active, experts, sigmoid, normalized, corrected, scale, shared));
      Matrix logits = Matrix::Normal(random_, DType::kF32, rows, experts, 1, 3.0f);
      std::vector<float> correction = RandomVector(experts);
      for (float& value : correction) value *= corrected ? 0.4f : 0.0f;
      // Equal scores with equal corrections.
      const auto equals_next = [&](int64_t i) { return i % 4 == 0 && i + 1 < experts; };
      for (int64_t i = 0; i < experts; ++i) {
        if (!equals_next(i)) continue;
        for (int64_t row = 0; row < rows; ++row) {
          logits.Set(row, i + 1, static_cast<float>(logits.At(row, i)));
        }
        correction[static_cast<size_t>(i + 1)] = correction[static_cast<size_t>(i)];
      }
      if (active > 1) {
        logits.Set(0, 2, -std::numeric_limits<float>::infinity());
        logits.Set(0, 3, 30);  // sigmoids that round to 1
        logits.Set(0, 6, 40);
        // Beside it softmax rounds the scores of all others to 0. The correction lets it be chosen:
        // the sum of normalized weights must not be 0.
        logits.Set(rows - 1, 7, 300);
        if (corrected) correction[7] = 1;
      }
      const Matrix share = Matrix::Normal(random_, DType::kF32, rows, 1, 2, 4.0f);
      const int64_t sent = active + (shared ? 1 : 0);
      const Router router{.sigmoid = sigmoid,
                          .normalized = normalized,
                          .scale = scale,
                          .correction = corrected ? DeviceMemory::Upload(correction) : nullptr};
      const MatrixView x = OnDevice(logits);
      const RandomRouting got = Routed(x, router, sent, shared ? OnDevice(share) : MatrixView());
      if (!shared) ExpectRanges(got, x, router, active);
      for (int64_t row = 0; row < rows; ++row) {
        SCOPED_TRACE(fmt::format("row {}", row));
        std::vector<double> scores;
        for (int64_t i = 0; i < experts; ++i) {
          const double logit = logits.At(row, i);
          scores.push_back(sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit));
        }
        if (!sigmoid) {
          const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
          for (double& score : scores) score /= all;
        }
        const auto score = [&](int64_t i) { return scores[static_cast<size_t>(i)]; };
        // By what experts are chosen, and how far it may be off.
        const auto rank = [&](int64_t i) {
          return corrected ? score(i) + static_cast<double>(correction[static_cast<size_t>(i)])
                           : logits.At(row, i);
        };
        const auto error = [&](int64_t i) {
          return corrected ? Tolerance(experts) * score(i) + std::ldexp(1, -22) : 0;
        };
        const std::span<const int32_t> chosen =
            std::span(got.experts)
                .subspan(static_cast<size_t>(row * sent), static_cast<size_t>(active));
        std::vector<bool> is_chosen(static_cast<size_t>(experts));
        double sum = 0;
        for (size_t i = 0; i < chosen.size(); ++i) {
          const int32_t expert = chosen[i];
          ASSERT_TRUE(expert >= 0 && expert < experts && !is_chosen[static_cast<size_t>(expert)])
              << expert;
          is_chosen[static_cast<size_t>(expert)] = true;
          sum += score(expert);
          if (i > 0) {
            EXPECT_LE(rank(expert) - error(expert), rank(chosen[i - 1]) + error(chosen[i - 1]));
          }
          // Of equal ones the first.
          if (expert > 0 && equals_next(expert - 1)) {
            ASSERT_GT(i, 0u);
            EXPECT_EQ(chosen[i - 1], expert - 1);
          }
        }
        for (int32_t i = 0; i < experts; ++i) {
          if (is_chosen[static_cast<size_t>(i)]) continue;
          EXPECT_LE(rank(i) - error(i), rank(chosen.back()) + error(chosen.back())) << i;
        }
        for (size_t i = 0; i < chosen.size(); ++i) {
          const double weight =
              static_cast<double>(scale) * score(chosen[i]) / (normalized ? sum : 1);
          EXPECT_NEAR(got.weights[static_cast<size_t>(row * sent) + i], weight,
                      Tolerance(experts) * weight + 1e-38)
              << "choice " << i;
        }
        if (shared) ExpectShared(got, row, experts, sent, share);
      }
    }
  }
}

class PlainExpertsTest : public ExpertsTest {
 protected:
  void Check(const ExpertShape& shape, DType dtype, int64_t padding, const GateFunction& function,
             bool biased) {
    SCOPED_TRACE(
        fmt::format("rows {}, hidden {}, intermediate {}, {} of {} experts, {}, padding {}, linear "
                    "{}, biased {}",
                    shape.rows, shape.hidden, shape.intermediate, shape.active, shape.experts,
                    Name(dtype), padding, function.linear, biased));
    Matrix x(target_->InputOf(dtype), shape.rows, shape.hidden, padding);
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t i = 0; i < shape.hidden; ++i) {
        x.Set(row, i, static_cast<float>(RoundTo(dtype, random_.Normal())));
      }
    }
    const auto matrices = [&](int64_t out, int64_t in) {
      std::vector<Matrix> made;
      const float scale = 1 / std::sqrt(static_cast<float>(in));
      for (int64_t expert = 0; expert < shape.experts; ++expert) {
        made.push_back(Matrix::Normal(random_, dtype, out, in, 0, scale));
      }
      return made;
    };
    ExpertValues values{matrices(shape.intermediate, shape.hidden),
                        matrices(shape.intermediate, shape.hidden),
                        matrices(shape.hidden, shape.intermediate)};
    for (int part = 0; part < kExpertParts; ++part) {
      if (biased) values.biases[part] = RandomBiases(shape, part);
    }
    const RandomRouting routing(random_, shape);
    const Matrix y = Matrix::Normal(random_, DType::kF32, shape.rows, shape.hidden, padding);
    for (const ExpertRange& range : Ranges(shape)) {
      SCOPED_TRACE(fmt::format("experts from {}", range.first));
      const Reference reference =
          Refer(shape, x, values, routing.Within(range), y, function, RoundingWith(dtype));
      ForEachVariant([&] {
        const auto upload = [&](const std::vector<Matrix>& all, int part) {
          std::vector<const void*> data;
          for (const Matrix& matrix : all) data.push_back(OnDevice(matrix).data);
          MatrixView type = all.front().view();
          type.data = nullptr;
          return Table(type, data, values.biases[part], range);
        };
        const ExpertLayer layer{.gate = upload(values.gate, 0),
                                .up = upload(values.up, 1),
                                .down = upload(values.down, 2),
                                .elsewhere = shape.experts - range.count};
        const Routing here = Upload(shape, routing.Here(range, shape.active));
        Compare(shape, reference, Run(x, here, layer, y, function));
      });
    }
  }

 private:
  // bf16's, of what is between two products: on the CPU their x is rounded, on a GPU it is stored.
  static double RoundingWith(DType dtype) { return Rounding(dtype); }
};

TEST_F(PlainExpertsTest, OfAllTypes) {
  for (const DType dtype : target_->Tables()) {
    for (const int64_t rows : {1, 2, 4, 5, 16, 17, 33}) {
      Check({rows, 40, 24, 6, 2}, dtype, 0, rows % 2 == 0 ? kGeluTanh : kSilu, rows % 2 != 0);
      Check({rows, 72, 56, 9, 3}, dtype, 8, kClampedSwiglu, rows % 4 != 0);
    }
    Check({7, 37, 19, 4, 3}, dtype, 1, kClampedSwiglu, true);  // nothing is aligned
    Check({3, 8, 8, 1, 1}, dtype, 0, kGeluTanh, false);        // one expert
  }
}

// Rows that fill tiles of tensor cores and leave some of them partly empty.
TEST_F(PlainExpertsTest, ManyRows) {
  for (const auto& shape : {ExpertShape{150, 136, 72, 5, 2}, ExpertShape{300, 200, 136, 3, 2},
                            ExpertShape{257, 64, 128, 40, 4}, ExpertShape{700, 72, 40, 2, 1}}) {
    Check(shape, DType::kBF16, 8, kSilu, false);
    Check(shape, DType::kBF16, 8, kClampedSwiglu, true);
  }
}

// Depths and widths of models, for few rows: steps of decoding.
TEST_F(PlainExpertsTest, WideLayers) {
  for (const int64_t rows : {1, 3, 6}) {
    Check({rows, 1048, 520, 9, 8}, DType::kBF16, 0, kSilu, true);
    Check({rows, 264, 1416, 4, 2}, DType::kBF16, 0, kClampedSwiglu, rows != 3);
  }
}

// A row's bits depend neither on the other rows nor on their number.
TEST_F(PlainExpertsTest, RowsAreIndependentOnBatchInvariantStreams) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(Name(dtype));
    MakeBatchInvariant(*stream_);
    const int64_t most = LinearBatchInvariantRows(device_->type(), dtype);
    if (most == 0) continue;
    const ExpertShape shape{most, 136, 72, 5, 2};
    const auto matrices = [&](int64_t out, int64_t in) {
      std::vector<const void*> data;
      MatrixView type;
      for (int64_t expert = 0; expert < shape.experts; ++expert) {
        type = OnDevice(Matrix::Normal(random_, dtype, out, in));
        data.push_back(type.data);
      }
      type.data = nullptr;
      return Table(type, data);
    };
    const ExpertLayer layer{matrices(shape.intermediate, shape.hidden),
                            matrices(shape.intermediate, shape.hidden),
                            matrices(shape.hidden, shape.intermediate)};
    const Matrix x = Matrix::Normal(random_, target_->InputOf(dtype), most, shape.hidden);
    const Matrix y = Matrix::Normal(random_, DType::kF32, most, shape.hidden);
    const RandomRouting routing(random_, shape);
    const auto all = Download(Run(x, Upload(shape, routing), layer, y, kSilu).Row<float>(0),
                              static_cast<size_t>(most * shape.hidden));
    for (int64_t count = 1; count < most; ++count) {
      const int64_t first = random_.Integer(0, most - count);
      Matrix some_x(x.view().dtype, count, shape.hidden), some_y(DType::kF32, count, shape.hidden);
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t i = 0; i < shape.hidden; ++i) {
          some_x.Set(row, i, static_cast<float>(x.At(first + row, i)));
          some_y.Set(row, i, static_cast<float>(y.At(first + row, i)));
        }
      }
      const Routing own = Upload(shape, routing).Rows(first, count);
      const auto got = Download(Run(some_x, own, layer, some_y, kSilu).Row<float>(0),
                                static_cast<size_t>(count * shape.hidden));
      EXPECT_EQ(
          0, std::memcmp(got.data(), all.data() + first * shape.hidden, got.size() * sizeof(float)))
          << count << " rows from " << first;
    }
  }
}

}  // namespace
}  // namespace litecache::ops
