// Shared by the tests of GatedDelta(): random inputs, and what it should compute from them, in
// double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/dense_testing.h"
#include "ops/recurrence/gated_delta.h"

namespace litecache::ops {

// A part of a step's rows, of one sequence.
struct DeltaRows {
  int64_t first_row, rows, past;
};

// The layer and the inputs of a step.
struct DeltaCase {
  GatedDeltaShape shape;
  std::vector<float> filter, log_rate, rate_bias, norm;
  Matrix qkv, gate, rate, step;

  DeltaCase(Random& random, const GatedDeltaShape& s, int64_t rows, int64_t padding)
      : shape(s),
        qkv(Matrix::Normal(random, DType::kF32, rows, s.channels(), padding)),
        gate(Matrix::Normal(random, DType::kF32, rows, s.width(), padding, 2)),
        rate(Matrix::Normal(random, DType::kF32, rows, s.value_heads, padding, 3)),
        step(Matrix::Normal(random, DType::kF32, rows, s.value_heads, padding, 2)) {
    for (int64_t i = 0; i < s.channels() * s.taps; ++i) filter.push_back(random.Normal(0.5f));
    for (int64_t i = 0; i < s.value_heads; ++i) {
      // Heads that forget within a token, and some that remember hundreds.
      log_rate.push_back(static_cast<float>(random.Integer(-6, 2)));
      rate_bias.push_back(random.Normal());
    }
    for (int64_t i = 0; i < s.value_dim; ++i) norm.push_back(1 + random.Normal(0.2f));
  }
};

// Sequences' states, each [state_floats]: of tokens before, or NaN if there are none.
using DeltaStates = std::vector<std::vector<float>>;

inline DeltaStates RandomStates(Random& random, const GatedDeltaShape& shape,
                                const std::vector<DeltaRows>& sequences) {
  DeltaStates states;
  for (const DeltaRows& s : sequences) {
    std::vector<float> state(static_cast<size_t>(shape.state_floats()),
                             std::numeric_limits<float>::quiet_NaN());
    const auto history = static_cast<size_t>(shape.history_floats());
    for (size_t i = 0; s.past > 0 && i < state.size(); ++i) {
      state[i] = random.Normal(i < history ? 1.0f : 0.3f);
    }
    states.push_back(std::move(state));
  }
  return states;
}

// Results and how far they may be off.
struct DeltaReference {
  std::vector<double> out, out_tolerance;      // [T, width]; NaN in rows of no sequence
  std::vector<std::vector<double>> states;     // histories are copies: exact
  std::vector<std::vector<double>> tolerance;  // of states
};

namespace reference {

inline double Norm(const std::vector<double>& x) {
  double squares = 0;
  for (double v : x) squares += v * v;
  return std::sqrt(squares);
}
inline double Silu(double x) { return x / (1 + std::exp(-x)); }

// An f32 result's rounding, and that of a product of two vectors of `n` elements, relative to their
// norms' product; sums that large are rare.
inline constexpr double kUnit = 0x1p-24;
inline double SumRounding(int64_t n) {
  return kUnit * (2 * std::sqrt(static_cast<double>(n)) + 16);
}

// A vector, each element of which may be off by `error`.
struct Vector {
  std::vector<double> x, error;

  // Of length one, times `factor`, and how far the whole vector may be off.
  std::pair<std::vector<double>, double> Unit(double factor) const {
    const double length = std::sqrt(Norm(x) * Norm(x) + 1e-6);
    std::vector<double> unit;
    for (double v : x) unit.push_back(v / length * factor);
    const auto n = static_cast<int64_t>(x.size());
    return {unit, factor * (2 * Norm(error) / length + SumRounding(n))};
  }
};

// One value head of one sequence. Errors of S are bounded by a norm for each of its columns: a
// token's decay and correction enlarge none, as a key's length is at most 1, and the token adds
// those of its own arithmetic.
class Head {
 public:
  Head(int64_t key_dim, int64_t value_dim)
      : s(static_cast<size_t>(value_dim), std::vector<double>(static_cast<size_t>(key_dim))),
        s_error(static_cast<size_t>(value_dim)) {}

  // What S gives for the query.
  Vector Token(const Vector& query, const Vector& key, const Vector& value, double log_rate,
               double rate, double rate_bias, double step) {
    const auto key_dim = static_cast<int64_t>(key.x.size());
    const double query_scale = 1 / std::sqrt(static_cast<double>(key_dim));
    const auto [q, q_error] = query.Unit(query_scale);
    const auto [k, k_error] = key.Unit(1);
    const double exponent = std::exp(log_rate) * std::log1p(std::exp(rate + rate_bias));
    const double decay = std::exp(-exponent);
    const double decay_error =
        kUnit * decay *
        (12 * exponent + std::exp(log_rate) * (std::abs(rate) + std::abs(rate_bias)) + 8);
    const double strength = 1 / (1 + std::exp(-step));
    const double sum = SumRounding(key_dim);

    Vector out;
    for (size_t c = 0; c < s.size(); ++c) {
      std::vector<double>& column = s[c];
      const double before = Norm(column);
      double gives = 0;
      for (size_t i = 0; i < k.size(); ++i) gives += k[i] * column[i];
      const double missing = value.x[c] - decay * gives;
      const double delta = strength * missing;
      const double delta_error =
          strength *
              (value.error[c] + decay * before * (k_error + sum) + decay_error * std::abs(gives) +
               4 * kUnit * (std::abs(value.x[c]) + decay * std::abs(gives))) +
          16 * kUnit * std::abs(delta);
      double reads = 0;
      for (size_t i = 0; i < k.size(); ++i) {
        column[i] = decay * column[i] + k[i] * delta;
        reads += q[i] * column[i];
      }
      const double sizes = before + Norm(column) + std::abs(delta);
      s_error[c] = decay * s_error[c] + decay_error * before + delta_error +
                   std::abs(delta) * k_error + 4 * kUnit * sizes;
      out.x.push_back(reads);
      out.error.push_back(query_scale * (s_error[c] + sum * sizes) + q_error * sizes);
    }
    return out;
  }

  std::vector<std::vector<double>> s;  // [value_dim][key_dim]
  std::vector<double> s_error;
};

}  // namespace reference

inline DeltaReference Refer(const DeltaCase& a, const std::vector<DeltaRows>& sequences,
                            const DeltaStates& before, float norm_eps, double out_rounding) {
  using reference::kUnit;
  const GatedDeltaShape& shape = a.shape;
  const int64_t channels = shape.channels(), kept = shape.taps - 1;
  const int64_t key_dim = shape.key_dim, value_dim = shape.value_dim;
  const auto cells = static_cast<size_t>(a.qkv.view().rows * shape.width());
  DeltaReference result{.out = std::vector<double>(cells, NAN),
                        .out_tolerance = std::vector<double>(cells)};
  for (size_t index = 0; index < sequences.size(); ++index) {
    const DeltaRows& sequence = sequences[index];
    const std::vector<float>& old = before[index];
    const auto input = [&](int64_t t, int64_t channel) -> double {
      if (t >= 0) return a.qkv.At(sequence.first_row + t, channel);
      return sequence.past > 0 ? old[static_cast<size_t>((kept + t) * channels + channel)] : 0;
    };
    // A head's part of a token's convolution.
    const auto convolved = [&](int64_t t, int64_t begin, int64_t count) {
      reference::Vector y;
      for (int64_t c = begin; c < begin + count; ++c) {
        double sum = 0, magnitudes = 0;
        for (int64_t i = 0; i < shape.taps; ++i) {
          const double term =
              a.filter[static_cast<size_t>(c * shape.taps + i)] * input(t - kept + i, c);
          sum += term;
          magnitudes += std::abs(term);
        }
        const double value = reference::Silu(sum);
        y.x.push_back(value);
        y.error.push_back(kUnit * (1.1 * static_cast<double>(shape.taps + 1) * magnitudes +
                                   12 * std::abs(value)));
      }
      return y;
    };
    std::vector<double> state(old.size()), tolerance(old.size());
    for (int64_t i = 0; i < kept; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        state[static_cast<size_t>(i * channels + c)] = input(sequence.rows - kept + i, c);
      }
    }
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      const int64_t key_head =
          shape.tiled ? head % shape.key_heads : head * shape.key_heads / shape.value_heads;
      const auto at = [&](int64_t i, int64_t c) {
        return static_cast<size_t>(shape.history_floats() + (head * key_dim + i) * value_dim + c);
      };
      reference::Head h(key_dim, value_dim);
      const auto for_each = [&](const auto& body) {
        for (int64_t c = 0; c < value_dim; ++c) {
          for (int64_t i = 0; i < key_dim; ++i) {
            body(h.s[static_cast<size_t>(c)][static_cast<size_t>(i)], at(i, c),
                 h.s_error[static_cast<size_t>(c)]);
          }
        }
      };
      if (sequence.past > 0) for_each([&](double& s, size_t i, double) { s = old[i]; });
      for (int64_t t = 0; t < sequence.rows; ++t) {
        const int64_t row = sequence.first_row + t;
        const auto own = static_cast<size_t>(head);
        const reference::Vector o =
            h.Token(convolved(t, key_head * key_dim, key_dim),
                    convolved(t, (shape.key_heads + key_head) * key_dim, key_dim),
                    convolved(t, 2 * shape.key_heads * key_dim + head * value_dim, value_dim),
                    a.log_rate[own], a.rate.At(row, head), a.rate_bias[own], a.step.At(row, head));
        const double root = std::sqrt(static_cast<double>(value_dim));
        const double length = reference::Norm(o.x) / root;
        const double factor = 1 / std::sqrt(length * length + norm_eps);
        for (int64_t c = 0; c < value_dim; ++c) {
          const auto i = static_cast<size_t>(c);
          const double rest =
              factor * a.norm[i] * reference::Silu(a.gate.At(row, head * value_dim + c));
          const auto cell = static_cast<size_t>(row * shape.width() + head * value_dim + c);
          result.out[cell] = o.x[i] * rest;
          result.out_tolerance[cell] =
              std::abs(rest) *
                  (o.error[i] + std::abs(o.x[i]) * factor * reference::Norm(o.error) / root) +
              (reference::SumRounding(value_dim) + 16 * kUnit + out_rounding) *
                  std::abs(result.out[cell]) +
              1e-30;
        }
      }
      for_each([&](double& s, size_t i, double error) {
        state[i] = s;
        tolerance[i] = error + 1e-30;
      });
    }
    result.states.push_back(std::move(state));
    result.tolerance.push_back(std::move(tolerance));
  }
  return result;
}

class GatedDeltaTest : public DenseTest {
 protected:
  static constexpr float kNormEps = 1e-2f;

  struct Results {
    Matrix out;
    DeltaStates states;
  };

  // The operation's results. Rows of `out` that are of no sequence remain NaN.
  Results Run(const DeltaCase& a, const std::vector<DeltaRows>& sequences,
              const DeltaStates& states, DType out_dtype = DType::kF32, int64_t out_padding = 0) {
    Results results{Matrix(out_dtype, a.qkv.view().rows, a.shape.width(), out_padding), states};
    const MatrixView out = OnDevice(results.out);
    std::vector<GatedDeltaSequence> parts;
    for (size_t i = 0; i < sequences.size(); ++i) {
      parts.push_back({.first_row = sequences[i].first_row,
                       .rows = sequences[i].rows,
                       .past = sequences[i].past,
                       .state = Upload(states[i])});
    }
    Launch(a.shape,
           {.filter = Upload(a.filter),
            .log_rate = Upload(a.log_rate),
            .rate_bias = Upload(a.rate_bias),
            .norm = Upload(a.norm),
            .norm_eps = kNormEps},
           parts,
           {.qkv = OnDevice(a.qkv),
            .gate = OnDevice(a.gate),
            .rate = OnDevice(a.rate),
            .step = OnDevice(a.step)},
           out);
    stream_->Synchronize();
    device_->Download(results.out.view().data, out.data,
                      static_cast<size_t>(out.rows * out.stride) * SizeOf(out_dtype));
    for (size_t i = 0; i < parts.size(); ++i) {
      results.states[i] = Download(parts[i].state, states[i].size());
    }
    return results;
  }

 private:
  // The device's operation: gated_delta_test.cc, gated_delta_cuda_test.cc.
  void Launch(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
              const std::vector<GatedDeltaSequence>& sequences, const GatedDeltaInputs& in,
              const MatrixView& out);
};

}  // namespace litecache::ops
