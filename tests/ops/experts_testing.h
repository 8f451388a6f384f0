// Shared by the tests of experts: a layer with random weights, rows sent to random experts, and
// what the operation should compute, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/dense_testing.h"
#include "ops/experts/experts.h"

namespace litecache::ops {

struct ExpertShape {
  int64_t rows, hidden, intermediate, experts, active;
};

// A layer's matrices, one of each for every expert, of which only the values matter to the
// reference; and the biases of parts, [experts * rows] or none.
struct ExpertValues {
  std::vector<Matrix> gate, up, down;
  std::vector<float> biases[kExpertParts] = {};
};

// Rows' experts: those of lower indices are more popular, so that some get many rows and, of many,
// some get none.
struct RandomRouting {
  std::vector<int32_t> experts;
  std::vector<float> weights;

  RandomRouting() = default;
  RandomRouting(Random& random, const ExpertShape& shape) {
    std::vector<int32_t> order(static_cast<size_t>(shape.experts));
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::iota(order.begin(), order.end(), 0);
      for (int64_t i = 0; i < shape.active; ++i) {
        const int64_t left = shape.experts - i;
        const int64_t pick = random.Integer(0, random.Integer(0, left - 1));
        std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + pick)]);
        experts.push_back(order[static_cast<size_t>(i)]);
        weights.push_back(std::abs(random.Normal(0.5f)));
      }
    }
  }

  // With weights of 0 for the experts that are not in the range.
  RandomRouting Within(const ExpertRange& range) const {
    RandomRouting within = *this;
    for (size_t i = 0; i < experts.size(); ++i) {
      if (!IsIn(range, experts[i])) within.weights[i] = 0;
    }
    return within;
  }
  // As Route() leaves it where only the experts of a range are here.
  RandomRouting Here(const ExpertRange& range, int64_t active) const {
    RandomRouting here = *this;
    for (size_t row = 0; row < experts.size(); row += static_cast<size_t>(active)) {
      const size_t end = row + static_cast<size_t>(active);
      size_t next = row;
      for (size_t i = row; i < end; ++i) {
        if (!IsIn(range, experts[i])) continue;
        here.experts[next] = experts[i] - static_cast<int32_t>(range.first);
        here.weights[next++] = weights[i];
      }
      for (; next < end; ++next) {
        here.experts[next] = Routing::kElsewhere;
        here.weights[next] = 0;
      }
    }
    return here;
  }

 private:
  static bool IsIn(const ExpertRange& range, int32_t expert) {
    return expert >= range.first && expert < range.first + range.count;
  }
};

// All of a layer's experts, half of them, and one to which most rows are not sent.
inline std::vector<ExpertRange> Ranges(const ExpertShape& shape) {
  return {{0, shape.experts}, {shape.experts / 3, (shape.experts + 1) / 2}, {shape.experts - 1, 1}};
}

class ExpertsTest : public DenseTest {
 protected:
  // The sums and how far they may be off. rounding: relative, of what is rounded between the
  // products and, behind them, before it is added.
  struct Reference {
    std::vector<double> sums, tolerances;  // [rows, hidden]
  };
  Reference Refer(const ExpertShape& shape, const Matrix& x, const ExpertValues& values,
                  const RandomRouting& routing, const Matrix& y, const GateFunction& function,
                  double rounding) const {
    Reference reference;
    const auto inner = static_cast<size_t>(shape.intermediate);
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::vector<double> sums, errors;
      for (int64_t o = 0; o < shape.hidden; ++o) {
        sums.push_back(y.At(row, o));
        errors.push_back(std::ldexp(1.0, -23) * static_cast<double>(shape.active + 1) *
                         std::abs(y.At(row, o)));
      }
      for (int64_t i = row * shape.active; i < (row + 1) * shape.active; ++i) {
        const auto expert = static_cast<size_t>(routing.experts[static_cast<size_t>(i)]);
        const double weight = routing.weights[static_cast<size_t>(i)];
        std::vector<double> h(inner), h_errors(inner);
        for (int64_t j = 0; j < shape.intermediate; ++j) {
          const auto [g, g_error] =
              Product(x, row, values.gate[expert], j, Bias(values.biases[0], expert, inner, j));
          const auto [u, u_error] =
              Product(x, row, values.up[expert], j, Bias(values.biases[1], expert, inner, j));
          h[static_cast<size_t>(j)] = GatedValue(function, g, u);
          h_errors[static_cast<size_t>(j)] = GatedError(function, g, g_error, u, u_error, rounding);
        }
        for (int64_t o = 0; o < shape.hidden; ++o) {
          double sum = Bias(values.biases[2], expert, static_cast<size_t>(shape.hidden), o);
          double magnitudes = std::abs(sum), error = 0;
          for (int64_t j = 0; j < shape.intermediate; ++j) {
            const double term = h[static_cast<size_t>(j)] * values.down[expert].At(o, j);
            sum += term;
            magnitudes += std::abs(term);
            error += h_errors[static_cast<size_t>(j)] * std::abs(values.down[expert].At(o, j));
          }
          error +=
              target_->SumError(shape.intermediate, magnitudes, sum) + rounding * std::abs(sum);
          sums[static_cast<size_t>(o)] += weight * sum;
          // Each of the later sums is rounded as well.
          errors[static_cast<size_t>(o)] +=
              weight * (error + std::ldexp(1.0, -23) * static_cast<double>(shape.active + 1) *
                                    std::abs(sum));
        }
      }
      reference.sums.insert(reference.sums.end(), sums.begin(), sums.end());
      reference.tolerances.insert(reference.tolerances.end(), errors.begin(), errors.end());
    }
    return reference;
  }

  Routing Upload(const ExpertShape& shape, const RandomRouting& routing) {
    return {.experts = DeviceMemory::Upload(routing.experts),
            .weights = DeviceMemory::Upload(routing.weights),
            .rows = shape.rows,
            .active = shape.active};
  }
  // data: each expert's matrix on the device. biases: of all.
  ExpertMatrices Table(const MatrixView& type, const std::vector<const void*>& data,
                       const std::vector<float>& biases, const ExpertRange& range) {
    const auto part = [](const auto& all, int64_t first, int64_t count) {
      return std::vector(all.begin() + first, all.begin() + first + count);
    };
    const int64_t rows = biases.empty() ? 0 : type.rows;
    return Table(type, part(data, range.first, range.count),
                 part(biases, range.first * rows, range.count * rows));
  }
  ExpertMatrices Table(const MatrixView& type, const std::vector<const void*>& data,
                       const std::vector<float>& biases = {}) {
    return {.type = type,
            .count = static_cast<int64_t>(data.size()),
            .data = DeviceMemory::Upload(data),
            .bias = biases.empty() ? nullptr : DeviceMemory::Upload(biases)};
  }
  // Of a layer's part. With a scale of 4, some gates exceed kClampedSwiglu's limit.
  std::vector<float> RandomBiases(const ExpertShape& shape, int part, float scale = 4) {
    std::vector<float> biases =
        RandomVector(shape.experts * (part == 2 ? shape.hidden : shape.intermediate));
    for (float& bias : biases) bias *= scale;
    return biases;
  }
  // The result of the operation.
  MatrixView Run(const Matrix& x, const Routing& routing, const ExpertLayer& layer, const Matrix& y,
                 const GateFunction& function) {
    const uint64_t bytes = ExpertScratchBytes(device_->type(), layer, routing.rows, routing.active);
    const MatrixView out = OnDevice(y);
    Experts(*stream_, OnDevice(x), routing, layer, function, Poisoned<std::byte>(bytes), out);
    return out;
  }
  void Compare(const ExpertShape& shape, const Reference& reference, const MatrixView& y) {
    const auto at = [&](int64_t row, int64_t o) {
      return static_cast<size_t>(row * shape.hidden + o);
    };
    ExpectNear(
        y, [&](int64_t row, int64_t o) { return reference.sums[at(row, o)]; },
        [&](int64_t row, int64_t o) { return reference.tolerances[at(row, o)]; });
  }

 private:
  static double Bias(const std::vector<float>& biases, size_t expert, size_t outputs,
                     int64_t output) {
    return biases.empty() ? 0 : biases[expert * outputs + static_cast<size_t>(output)];
  }
  // A row of x times a row of w, plus a bias, and how far it may be off.
  std::pair<double, double> Product(const Matrix& x, int64_t row, const Matrix& w, int64_t output,
                                    double bias) const {
    double sum = bias, magnitudes = std::abs(bias);
    for (int64_t i = 0; i < x.view().cols; ++i) {
      const double term = x.At(row, i) * w.At(output, i);
      sum += term;
      magnitudes += std::abs(term);
    }
    return {sum, target_->SumError(x.view().cols, magnitudes, sum)};
  }
};

}  // namespace litecache::ops
