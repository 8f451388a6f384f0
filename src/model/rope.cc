// Frequencies in single precision, operation by operation as Transformers computes them with torch:
// at position 100,000 one unit in the last place of a frequency is already 0.01 rad.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/config.h"

namespace litecache::model {
namespace {

// theta^(2i / head_dim), i < head_dim / 2.
std::vector<float> PositionFrequencies(double theta, int64_t head_dim) {
  std::vector<float> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    result[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return result;
}

void ScaleLlama3(const RopeConfig& rope, std::vector<float>& inv_freq) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low_wavelength = static_cast<float>(rope.original_context / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(rope.original_context / rope.high_freq_factor);
  for (float& frequency : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= factor;
      continue;
    }
    const float smooth = (static_cast<float>(rope.original_context) / wavelength -
                          static_cast<float>(rope.low_freq_factor)) /
                         static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1 - smooth) * frequency / factor + smooth * frequency;
  }
}

// The dimension that turns `rotations` times over the original context.
double CorrectionDimension(const RopeConfig& rope, int64_t head_dim, double rotations) {
  return static_cast<double>(head_dim) *
         std::log(rope.original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void ScaleYarn(const RopeConfig& rope, int64_t head_dim, const std::vector<float>& frequencies,
               std::vector<float>& inv_freq) {
  double low = CorrectionDimension(rope, head_dim, rope.beta_fast);
  double high = CorrectionDimension(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // as Transformers avoids the division by zero
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float position =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float ramp = std::clamp(position, 0.0f, 1.0f);
    const float extrapolation = 1 - ramp;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * frequencies[i]);
    inv_freq[i] = interpolated * (1 - extrapolation) + inv_freq[i] * extrapolation;
  }
}

float YarnAttentionFactor(const RopeConfig& rope) {
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  const auto scale = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return static_cast<float>(scale(rope.mscale) / scale(rope.mscale_all_dim));
  }
  return static_cast<float>(scale(1));
}

float LongRopeAttentionFactor(const RopeConfig& rope) {
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  if (rope.factor <= 1) return 1;
  return static_cast<float>(std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_context)));
}

}  // namespace

RopeTable MakeRopeTable(const RopeConfig& rope, int64_t head_dim) {
  double theta = rope.theta;
  if (rope.scaling == RopeScaling::kNtkAlpha) {
    const auto dim = static_cast<double>(head_dim);
    theta *= std::pow(rope.factor, dim / (dim - 2));
  }
  const std::vector<float> frequencies = PositionFrequencies(theta, head_dim);
  RopeTable table;
  for (const float frequency : frequencies) table.inv_freq.push_back(1.0f / frequency);
  switch (rope.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kNtkAlpha:
      break;
    case RopeScaling::kLinear:
      for (float& frequency : table.inv_freq) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeScaling::kLlama3:
      ScaleLlama3(rope, table.inv_freq);
      break;
    case RopeScaling::kYarn:
      ScaleYarn(rope, head_dim, frequencies, table.inv_freq);
      table.attention_factor = YarnAttentionFactor(rope);
      break;
    case RopeScaling::kLongRope:
      LC_CHECK(rope.factors.size() == table.inv_freq.size());
      for (size_t i = 0; i < rope.factors.size(); ++i) {
        table.inv_freq[i] = 1.0f / (rope.factors[i] * frequencies[i]);
      }
      table.attention_factor = LongRopeAttentionFactor(rope);
      break;
    case RopeScaling::kProportional: {
      const auto rotated =
          static_cast<size_t>(rope.rotated_share * static_cast<double>(head_dim)) / 2;
      for (size_t i = 0; i < table.inv_freq.size(); ++i) {
        table.inv_freq[i] = i < rotated ? table.inv_freq[i] / static_cast<float>(rope.factor) : 0;
      }
      break;
    }
    case RopeScaling::kFactors:
      LC_CHECK(rope.factors.size() == table.inv_freq.size());
      for (size_t i = 0; i < rope.factors.size(); ++i) table.inv_freq[i] /= rope.factors[i];
      break;
  }
  return table;
}

}  // namespace litecache::model
