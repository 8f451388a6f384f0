#include "base/quantize_scales.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace litecache::quantize {
namespace {

// Four floats in a register: sums have one order whatever the compiler.
using Vec = float __attribute__((vector_size(16)));
constexpr size_t kLanes = 4;

Vec Load(const float* x) {
  Vec v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}
Vec Fill(float x) { return Vec{x, x, x, x}; }
float Total(Vec v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Level() of four values.
Vec Levels(Vec value, Vec low, Vec high) {
  const Vec shift = Fill(12582912.0f);
  value = value > low ? value : low;
  value = value < high ? value : high;
  return (value + shift) - shift;
}

// Whether scale * q + minimum with integers q in [low, high] has all of the values.
bool Holds(std::span<const float> x, float scale, float minimum, float low, float high) {
  const float inverse = Inverse(scale);
  return std::all_of(x.begin(), x.end(), [&](float value) {
    return scale * Level((value - minimum) * inverse, low, high) + minimum == value;
  });
}

struct Range {
  float low, high;
};
Range RangeOf(std::span<const float> x) {
  Range range{x[0], x[0]};
  for (const float value : x) {
    range.low = value < range.low ? value : range.low;
    range.high = value > range.high ? value : range.high;
  }
  return range;
}

// The scale of x = scale * q, q in [low, high], low < 0, with the least squared error, each times
// its weight, among those that put `extreme` near `low`.
float SearchScale(std::span<const float> x, const float* weights, float extreme, float low,
                  float high) {
  float best_scale = extreme / low, best_gain = 0;  // unless sums overflow
  for (const float shift : {0.0f, -0.7f, -0.35f, 0.35f, 0.7f, 1.05f}) {
    const Vec inverse = Fill((low + shift) / extreme);
    Vec sum_xq = {}, sum_qq = {};
    for (size_t i = 0; i < x.size(); i += kLanes) {
      const Vec value = Load(&x[i]);
      const Vec q = Levels(value * inverse, Fill(low), Fill(high));
      const Vec wq = Load(weights + i) * q;
      sum_xq += wq * value;
      sum_qq += wq * q;
    }
    // The squared error is less than sum(w x x) by this much at the best scale, xq / qq.
    const float xq = Total(sum_xq), scale = xq * Inverse(Total(sum_qq)), gain = scale * xq;
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = scale;
    }
  }
  return best_scale;
}

}  // namespace

float Extreme(std::span<const float> x) {
  const auto [low, high] = RangeOf(x);
  return -low > high ? low : high;
}

float ExactScale(std::span<const float> x, int low, int high) {
  const float extreme = Extreme(x);
  if (extreme == 0) return 0;
  // No value is further from 0 than the extreme one, so its sign does not matter but at -low.
  for (int level = low; level > 0; --level) {
    const float scale = extreme / static_cast<float>(level > high ? -level : level);
    constexpr uint32_t kBelowHalf = 0x1fff;  // bits that f16 lacks
    if ((std::bit_cast<uint32_t>(scale) & kBelowHalf) != 0 || AsHalf(scale) != scale) continue;
    if (Holds(x, scale, 0, static_cast<float>(-low), static_cast<float>(high))) return scale;
  }
  return 0;
}

float SymmetricScale(std::span<const float> x, int low) {
  const float extreme = Extreme(x);
  if (extreme == 0) return 0;
  if (const float exact = ExactScale(x, low, low - 1); exact != 0) return exact;
  std::array<float, 32> ones;
  ones.fill(1);
  return AsHalf(
      SearchScale(x, ones.data(), extreme, static_cast<float>(-low), static_cast<float>(low - 1)));
}

float SquaredError(std::span<const float> x, float scale, float low, float high) {
  const Vec by = Fill(scale), inverse = Fill(Inverse(scale));
  Vec sum = {};
  for (size_t i = 0; i < x.size(); i += kLanes) {
    const Vec value = Load(&x[i]);
    const Vec error = value - Levels(value * inverse, Fill(low), Fill(high)) * by;
    sum += error * error;
  }
  return Total(sum);
}

Affine AffineScale(std::span<const float> x, int highest) {
  const auto [low, high] = RangeOf(x);
  const float minimum = AsHalf(low);
  const auto levels = static_cast<float>(highest);
  if (minimum == low) {
    for (int level = highest; level > 0; --level) {
      const float scale = AsHalf((high - low) / static_cast<float>(level));
      if (Holds(x, scale, minimum, 0, levels)) return {scale, minimum};
    }
  }
  return {AsHalf((high - low) / levels), minimum};
}

Group::Group(std::span<const float> x) : x_(x) {
  Vec squares = {};
  for (size_t i = 0; i < x.size(); i += kLanes) squares += Load(&x[i]) * Load(&x[i]);
  const float rms = std::sqrt(Total(squares) / static_cast<float>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) weights_[i] = rms + std::abs(x[i]);
}

float Group::Symmetric(int low) const {
  const float extreme = Extreme(x_);
  if (extreme == 0) return 0;
  return SearchScale(x_, weights_, extreme, static_cast<float>(-low), static_cast<float>(low - 1));
}

Affine Group::Fit(int highest) const {
  const auto [lowest, high] = RangeOf(x_);
  const float low = std::min(lowest, 0.0f), most = static_cast<float>(highest);
  if (!(high > low)) return {.scale = 0, .minimum = low};
  // Unless sums overflow, or all levels are equal.
  Affine best{.scale = (high - low) / most, .minimum = low};
  Vec sum_w = {}, sum_x = {};
  for (size_t i = 0; i < x_.size(); i += kLanes) {
    sum_w += Load(weights_ + i);
    sum_x += Load(weights_ + i) * Load(&x_[i]);
  }
  const float w = Total(sum_w), wx = Total(sum_x);
  float best_gain = -std::numeric_limits<float>::infinity();
  // Every candidate range gives levels, and the levels the best scale and minimum.
  for (const float shift : {0.0f, -0.5f, 0.4f, 0.8f, 1.2f, 1.7f, 2.2f}) {
    const Vec inverse = Fill((most + shift) / (high - low));
    Vec sum_q = {}, sum_qq = {}, sum_xq = {};
    for (size_t i = 0; i < x_.size(); i += kLanes) {
      const Vec value = Load(&x_[i]);
      const Vec q = Levels((value - Fill(low)) * inverse, Fill(0), Fill(most));
      const Vec wq = Load(weights_ + i) * q;
      sum_q += wq;
      sum_qq += wq * q;
      sum_xq += wq * value;
    }
    const float wq = Total(sum_q), wqq = Total(sum_qq), wxq = Total(sum_xq);
    const float determinant = w * wqq - wq * wq;
    if (!(determinant > 1e-6f * w * wqq)) continue;
    Affine fit{.scale = (w * wxq - wx * wq) / determinant,
               .minimum = (wqq * wx - wq * wxq) / determinant};
    if (fit.minimum > 0) fit = {.scale = wxq / wqq, .minimum = 0};
    // By how much the squared error is less than sum(w x x).
    const float gain = fit.scale * wxq + fit.minimum * wx;
    if (fit.scale > 0 && gain > best_gain) {
      best_gain = gain;
      best = fit;
    }
  }
  return best;
}

float Group::Error(float scale, float minimum, float highest) const {
  const Vec inverse = Fill(Inverse(scale)), m = Fill(minimum);
  Vec sum = {};
  for (size_t i = 0; i < x_.size(); i += kLanes) {
    const Vec value = Load(&x_[i]) - m;
    const Vec error = value - Fill(scale) * Levels(value * inverse, Fill(0), Fill(highest));
    sum += Load(weights_ + i) * error * error;
  }
  return Total(sum);
}

Group::Multiples Group::Round(const Affine& fit, float d, float m, int highest) const {
  constexpr int kMost = 63;
  const auto nearest = [](float value, float unit) {
    return static_cast<int>(Level(value * Inverse(unit), 0, kMost));
  };
  const Multiples first{nearest(fit.scale, d), nearest(-fit.minimum, m)};
  Multiples best = first;
  float least = std::numeric_limits<float>::infinity();
  for (int s = std::max(first.scale - 1, 0); s <= std::min(first.scale + 1, kMost); ++s) {
    for (int o = std::max(first.minimum - 1, 0); o <= std::min(first.minimum + 1, kMost); ++o) {
      const float error =
          Error(d * static_cast<float>(s), -m * static_cast<float>(o), static_cast<float>(highest));
      if (error < least) {
        least = error;
        best = {s, o};
      }
    }
  }
  return best;
}

}  // namespace litecache::quantize
