#include "ops/recurrence/gated_delta_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/common/row_grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/recurrence/gated_delta_cpu.cc"
#include "hwy/foreach_target.h"
// Highway requires this include to come after foreach_target.
#include "hwy/highway.h"
#include "ops/common/simd-inl.h"

#ifndef LITECACHE_OPS_GATED_DELTA_CPU_ONCE_
#define LITECACHE_OPS_GATED_DELTA_CPU_ONCE_
namespace litecache::ops::cpu {

// Channels that one piece of the convolution handles.
inline constexpr int64_t kStrip = 64;

// One token of one value head, with k and q normalized.
struct DeltaToken {
  const float* k;
  const float* q;
  const float* v;
  float decay, step;
};

}  // namespace litecache::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace litecache::ops::cpu {
namespace HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> Silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// The convolution of `n` <= kStrip channels of a sequence, in place, and their new history.
// filter, x, history: of the first of these channels.
void ConvolveStrip(const float* filter, int64_t taps, int64_t n, float* x, int64_t stride,
                   int64_t rows, bool fresh, float* history, int64_t channels) {
  const int64_t kept = taps - 1;
  float before[kMostDeltaTaps * kStrip] = {};  // the history; zeros before a sequence's first token
  if (!fresh) {
    for (int64_t i = 0; i < kept; ++i) {
      std::memcpy(before + i * kStrip, history + i * channels, static_cast<size_t>(n) * 4);
    }
  }
  // Inputs of token t, which may be before this step's.
  const auto input = [&](int64_t t) HWY_ATTR -> const float* {
    return t >= 0 ? x + t * stride : before + (kept + t) * kStrip;
  };
  for (int64_t i = 0; i < kept; ++i) {
    std::memcpy(history + i * channels, input(rows - kept + i), static_cast<size_t>(n) * 4);
  }
  float turned[kMostDeltaTaps * kStrip];  // the filter, a tap's channels side by side
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = 0; i < taps; ++i) turned[i * kStrip + c] = filter[c * taps + i];
  }
  // From the last token to the first, because those after a token need its input.
  for (int64_t t = rows - 1; t >= 0; --t) {
    const float* inputs[kMostDeltaTaps] = {input(t - kept)};
    for (int64_t i = 1; i < taps; ++i) inputs[i] = input(t - kept + i);
    float* y = x + t * stride;
    ForEachVector(n, [&](auto d, int64_t c) HWY_ATTR {
      auto sum = hn::Mul(hn::LoadU(d, turned + c), hn::LoadU(d, inputs[0] + c));
      for (int64_t i = 1; i < taps; ++i) {
        sum = hn::MulAdd(hn::LoadU(d, turned + i * kStrip + c), hn::LoadU(d, inputs[i] + c), sum);
      }
      hn::StoreU(Silu(d, sum), d, y + c);
    });
  }
}

HWY_INLINE float SumOfSquares(const float* x, int64_t n) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  float tail = 0;
  for (; i < n; ++i) tail += x[i] * x[i];
  return hn::GetLane(hn::SumOfLanes(d, sum)) + tail;
}

HWY_INLINE void ScaleRow(const float* x, float factor, int64_t n, float* y) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, y + i);
  });
}

// Columns [c, c + kVectors vectors) of S and of the result. Two passes over S: what it gives for
// the token's key must be known before it changes. The decay is applied to the first pass's sums
// and in the second pass, so that the first only reads.
template <int kVectors, class D>
HWY_INLINE void UpdateColumns(D d, const DeltaToken& token, int64_t key_dim, int64_t value_dim,
                              int64_t c, float* s, float* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> sums[kVectors], delta[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
  for (int64_t i = 0; i < key_dim; ++i) {
    const auto k = hn::Set(d, token.k[i]);
    const float* row = s + i * value_dim + c;
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(k, hn::LoadU(d, row + v * lanes), sums[v]);
    }
  }
  const auto decay = hn::Set(d, token.decay);
  const auto step = hn::Set(d, token.step);
  for (int v = 0; v < kVectors; ++v) {
    const auto value = hn::LoadU(d, token.v + c + v * lanes);
    delta[v] = hn::Mul(step, hn::NegMulAdd(decay, sums[v], value));
    sums[v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const auto k = hn::Set(d, token.k[i]);
    const auto q = hn::Set(d, token.q[i]);
    float* row = s + i * value_dim + c;
    for (int v = 0; v < kVectors; ++v) {
      const auto old = hn::Mul(decay, hn::LoadU(d, row + v * lanes));
      const auto now = hn::MulAdd(k, delta[v], old);
      hn::StoreU(now, d, row + v * lanes);
      sums[v] = hn::MulAdd(q, now, sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, out + c + v * lanes);
}

// One value head of a sequence, token after token.
void UpdateHead(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                const GatedDeltaSequence& sequence, int64_t head, const GatedDeltaInputs& in,
                const MatrixView& out) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t key_dim = shape.key_dim, value_dim = shape.value_dim;
  const int64_t key_head = shape.KeyHead(head);
  const float rate = -std::exp(weights.log_rate[head]);
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  float* s = sequence.state + shape.history_floats() + head * key_dim * value_dim;
  if (sequence.past == 0) {
    std::memset(s, 0, static_cast<size_t>(key_dim * value_dim) * sizeof(float));
  }
  float q[kMostDeltaDim], k[kMostDeltaDim];
  for (int64_t t = sequence.first_row; t < sequence.first_row + sequence.rows; ++t) {
    const float* x_q = in.qkv.Row<float>(t) + key_head * key_dim;
    const float* x_k = x_q + shape.key_heads * key_dim;
    ScaleRow(x_q, query_scale / std::sqrt(SumOfSquares(x_q, key_dim) + 1e-6f), key_dim, q);
    ScaleRow(x_k, 1.0f / std::sqrt(SumOfSquares(x_k, key_dim) + 1e-6f), key_dim, k);
    const float a = in.rate.Row<float>(t)[head] + weights.rate_bias[head];
    const float softplus = std::max(a, 0.0f) + std::log1p(std::exp(-std::abs(a)));
    const DeltaToken token{
        .k = k,
        .q = q,
        .v = in.qkv.Row<float>(t) + 2 * shape.key_heads * key_dim + head * value_dim,
        .decay = std::exp(rate * softplus),
        .step = 1.0f / (1.0f + std::exp(-in.step.Row<float>(t)[head]))};

    float* y = out.Row<float>(t) + head * value_dim;
    int64_t c = 0;
    for (; c + 4 * lanes <= value_dim; c += 4 * lanes) {
      UpdateColumns<4>(d, token, key_dim, value_dim, c, s, y);
    }
    for (; c + lanes <= value_dim; c += lanes) {
      UpdateColumns<1>(d, token, key_dim, value_dim, c, s, y);
    }
    for (; c < value_dim; ++c) UpdateColumns<1>(F32x1(), token, key_dim, value_dim, c, s, y);

    const float mean = SumOfSquares(y, value_dim) / static_cast<float>(value_dim);
    const float factor = 1.0f / std::sqrt(mean + weights.norm_eps);
    const float* gate = in.gate.Row<float>(t) + head * value_dim;
    const float* norm = weights.norm;
    ForEachVector(value_dim, [=](auto tag, int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(tag, y + i), hn::Set(tag, factor));
      const auto normed = hn::Mul(scaled, hn::LoadU(tag, norm + i));
      hn::StoreU(hn::Mul(normed, Silu(tag, hn::LoadU(tag, gate + i))), tag, y + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litecache::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litecache::ops::cpu {

HWY_EXPORT(ConvolveStrip);
HWY_EXPORT(UpdateHead);

void GatedDelta(ThreadPool& pool, const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                std::span<const GatedDeltaSequence> sequences, const GatedDeltaInputs& in,
                const MatrixView& out) {
  const auto convolve = HWY_DYNAMIC_DISPATCH(ConvolveStrip);
  const auto update = HWY_DYNAMIC_DISPATCH(UpdateHead);
  const auto count = static_cast<int64_t>(sequences.size());
  const int64_t channels = shape.channels();
  const int64_t strips = (channels + kStrip - 1) / kStrip;
  int64_t rows = 0;
  for (const GatedDeltaSequence& s : sequences) rows += s.rows;
  const int64_t mean_rows = (rows + count - 1) / count;
  pool.ParallelFor(count * strips, RowGrain(kStrip * mean_rows),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       const GatedDeltaSequence& s = sequences[static_cast<size_t>(i / strips)];
                       const int64_t c = i % strips * kStrip;
                       convolve(weights.filter + c * shape.taps, shape.taps,
                                std::min(kStrip, channels - c), in.qkv.Row<float>(s.first_row) + c,
                                in.qkv.stride, s.rows, s.past == 0, s.state + c, channels);
                     }
                   });
  const int64_t heads = shape.value_heads;
  pool.ParallelFor(count * heads, RowGrain(shape.key_dim * shape.value_dim * mean_rows),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       update(shape, weights, sequences[static_cast<size_t>(i / heads)], i % heads,
                              in, out);
                     }
                   });
}

}  // namespace litecache::ops::cpu
#endif
